"""A device without arithmetic: it keeps the tokens of each row, and the next token is a hash of them.

So the output of a request says whether exactly its own tokens, each once and in order, were in its row.
"""

import zlib
from array import array
from collections.abc import Sequence

import pytest

from engine_core.device import BlockId, StepPlan
from engine_core.kv_budget import KV_LENGTH_STEP
from protocol.prefix_hash import BLOCK_TOKENS

VOCABULARY = 50


def next_token(tokens: Sequence[int]) -> int:
    """What this device samples after these tokens."""
    return zlib.crc32(array("I", tokens).tobytes()) % VOCABULARY


def output_alone(prompt: Sequence[int], count: int) -> list[int]:
    """The first tokens that a request gets when nobody else is there."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class TokenDevice:
    """Checks each plan against the device's contract; raises AssertionError where it is broken."""

    def __init__(self, kv_capacity_tokens: int, max_rows: int, budget_tokens: int) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.prefix_block_tokens = BLOCK_TOKENS
        self._max_rows = max_rows
        self._budget_tokens = budget_tokens
        self.rows: dict[int, list[int]] = {}
        self.blocks: dict[BlockId, list[int]] = {}
        """Tokens of a stored block and all before it: its KV depends on all of them."""
        self.prefilled_tokens = 0
        self.restored_tokens = 0
        self._kv_tokens = 0
        self.closed = False

    def run(self, plan: StepPlan) -> list[int]:
        self._handle_blocks(plan)
        for row in plan.releases:
            del self.rows[row]
        for admission in plan.admissions:
            assert admission.row not in self.rows, "a row is used twice"
            self.rows[admission.row] = []
        assert plan.kv_rows <= self._max_rows
        assert plan.kv_length % KV_LENGTH_STEP == 0
        self._kv_tokens = plan.kv_rows * plan.kv_length
        self._check_kv_bound()
        self._restore(plan)
        fed = sum(len(chunk.token_ids) for chunk in plan.prefills) + len(plan.decodes)
        assert fed <= self._budget_tokens, "the token budget is broken"
        for chunk in plan.prefills:
            self.prefilled_tokens += len(chunk.token_ids)
            self._feed(plan, chunk.row, chunk.start, chunk.token_ids)
        sampled = []
        for decode in plan.decodes:
            self._feed(plan, decode.row, decode.start, [decode.token_id])
            sampled.append(next_token(self.rows[decode.row]))
        for tokens in self.rows.values():  # an idle row is fed as a dummy, at its next free position
            assert len(tokens) <= plan.kv_length
        return sampled

    def _handle_blocks(self, plan: StepPlan) -> None:
        for block_id in plan.drops:
            del self.blocks[block_id]
        for save in plan.saves:
            assert save.block_id not in self.blocks
            assert save.start % BLOCK_TOKENS == 0
            end = save.start + BLOCK_TOKENS
            assert len(self.rows[save.row]) >= end, "a block is saved that is not complete"
            self.blocks[save.block_id] = self.rows[save.row][:end]
        self._check_kv_bound()

    def _check_kv_bound(self) -> None:
        blocks_tokens = len(self.blocks) * BLOCK_TOKENS
        assert self._kv_tokens + blocks_tokens <= self.kv_capacity_tokens, "the KV bound is broken"

    def _restore(self, plan: StepPlan) -> None:
        admitted = {admission.row for admission in plan.admissions}
        for restore in plan.restores:
            assert restore.row in admitted
            tokens = self.rows[restore.row]
            assert tokens == []
            for block_id in restore.block_ids:
                block = self.blocks[block_id]
                assert block[:-BLOCK_TOKENS] == tokens, "a block that was computed behind other tokens"
                tokens.extend(block[-BLOCK_TOKENS:])
            self.restored_tokens += len(tokens)

    def _feed(self, plan: StepPlan, row: int, start: int, token_ids: Sequence[int]) -> None:
        assert row < plan.kv_rows
        assert start == len(self.rows[row]), "a position is skipped or fed twice"
        assert token_ids
        self.rows[row].extend(token_ids)
        assert len(self.rows[row]) <= plan.kv_length

    def close(self) -> None:
        self.closed = True


def test_the_next_token_depends_on_every_token_before() -> None:
    assert len({next_token([a, b]) for a in range(8) for b in range(8)}) > 20
    with pytest.raises(AssertionError, match="bound"):
        TokenDevice(256, 2, 8).run(StepPlan(kv_rows=2, kv_length=256))
