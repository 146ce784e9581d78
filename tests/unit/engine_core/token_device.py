"""A device without arithmetic: it keeps the tokens of each slot, and the next token is a hash of them.

So the output of a request says whether exactly its own tokens, each once and in order, were in its slot.
"""

import zlib
from array import array
from collections import deque
from collections.abc import Sequence

from engine_core.device import Admission, BlockId, BlockPart, RowMove, Slot, StepPlan, StepResult
from protocol.logprobs import TokenLogprobs
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


def doubled_lengths(shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths of pools: doubled from the shortest, and the longest as it is."""
    lengths = []
    while shortest < longest:
        lengths.append(shortest)
        shortest *= 2
    return (*lengths, longest)


class TokenDevice:
    """Checks each plan against the device's contract; raises AssertionError where it is broken.

    A plan is run when it is submitted; its result is handed out when it is collected.
    """

    block_parts: Sequence[BlockPart] = ()
    lookahead = False
    submit_blocks = False

    def __init__(
        self,
        kv_capacity_tokens: int,
        max_rows: int,
        budget_tokens: int,
        pool_lengths: Sequence[int] = (256, 512),
        checkpoint_tokens: int = 0,
    ) -> None:
        """With `checkpoint_tokens` it has states: of all tokens of a row together, as if they could not be cut."""
        self.checkpoint_tokens = checkpoint_tokens
        self.kv_capacity_tokens = kv_capacity_tokens
        self.prefix_block_tokens = BLOCK_TOKENS
        self.pool_lengths = pool_lengths
        self._max_rows = max_rows
        self._budget_tokens = budget_tokens
        self._pool_slots = [0] * len(pool_lengths)
        self._larger_slots = list(self._pool_slots)
        self.rows: dict[int, list[int]] = {}
        """Tokens whose KV a row holds."""
        self.slots: dict[int, Slot] = {}
        self._admissions: dict[int, Admission] = {}
        self._outputs: dict[int, int] = {}
        """Tokens of output by row: the next one's position."""
        self._sampled: dict[int, int] = {}
        """What the last plan sampled, by row."""
        self._results: deque[StepResult] = deque()
        self.blocks: dict[BlockId, list[int]] = {}
        """Tokens of a stored block and all before it: its KV depends on all of them."""
        self.checkpoints: dict[BlockId, list[int]] = {}
        """Tokens behind which a row's states were copied."""
        self.waits = 0
        """Plans with orders that an MLX device evaluates at once: the host waits for the plan before."""
        self.prefilled_tokens = 0
        self.restored_tokens = 0
        self.copied_tokens = 0
        self.moves = 0
        self.closed = False

    def submit(self, plan: StepPlan) -> None:
        assert len(self._results) < 2, "two plans are not collected"
        self._results.append(self._run(plan))

    def collect(self) -> StepResult:
        return self._results.popleft()

    def run(self, plan: StepPlan | None) -> StepResult:
        """Both at once."""
        assert plan is not None
        self.submit(plan)
        return self.collect()

    def close(self) -> None:
        self.closed = True

    def read_block(self, block_id: BlockId) -> Sequence[memoryview]:
        return [memoryview(array("I", self.blocks[block_id]).tobytes())]

    def _run(self, plan: StepPlan) -> StepResult:
        self.waits += bool(plan.saves or plan.copies or plan.restores)
        self._take_pools(plan)
        self._handle_blocks(plan)
        self._handle_checkpoints(plan)
        self._check_memory()
        held_before = {row: len(tokens) for row, tokens in self.rows.items()}
        for row in plan.releases:
            for table in (self.rows, self.slots, self._admissions, self._outputs):
                del table[row]
            self._sampled.pop(row, None)
        self._move(plan.moves)
        for admission in plan.admissions:
            self._admit(admission)
        self._check_slots(plan)
        self._copy(plan, held_before)
        self._restore(plan)
        return self._compute(plan)

    def _take_pools(self, plan: StepPlan) -> None:
        assert len(plan.pool_slots) == len(self.pool_lengths)
        assert all(slots <= self._max_rows for slots in plan.pool_slots)
        self._larger_slots = [max(pair) for pair in zip(self._pool_slots, plan.pool_slots, strict=True)]
        self._pool_slots = list(plan.pool_slots)

    def _handle_blocks(self, plan: StepPlan) -> None:
        for block_id in plan.drops:
            del self.blocks[block_id]
        for load in plan.loads:
            assert load.block_id not in self.blocks
            self.blocks[load.block_id] = array("I", bytes(load.data[0])).tolist()
        for save in plan.saves:
            assert save.block_id not in self.blocks
            assert save.start % BLOCK_TOKENS == 0
            end = save.start + BLOCK_TOKENS
            assert len(self.rows[save.row]) >= end, "a block is saved that is not complete"
            self.blocks[save.block_id] = self.rows[save.row][:end]

    def _handle_checkpoints(self, plan: StepPlan) -> None:
        assert self.checkpoint_tokens or not (plan.checkpoint_saves or plan.checkpoint_drops)
        for block_id in plan.checkpoint_drops:
            del self.checkpoints[block_id]
        for save in plan.checkpoint_saves:
            assert save.block_id not in self.checkpoints
            assert save.tokens % BLOCK_TOKENS == 0
            assert len(self.rows[save.row]) == save.tokens, "the states have moved on, or are not there yet"
            self.checkpoints[save.block_id] = list(self.rows[save.row])

    def _check_memory(self) -> None:
        taken = sum(slots * length for slots, length in zip(self._larger_slots, self.pool_lengths, strict=True))
        stored = len(self.blocks) * BLOCK_TOKENS + len(self.checkpoints) * self.checkpoint_tokens
        assert taken + stored <= self.kv_capacity_tokens, "the KV bound is broken"

    def _move(self, moves: Sequence[RowMove]) -> None:
        assert len({move.row for move in moves}) == len(moves), "a row moves twice"
        for move in moves:
            assert move.slot not in self.slots.values(), "a row moves to a slot that another has"
            assert move.slot.index < self._larger_slots[move.slot.pool]
            self.slots[move.row] = move.slot
            self.moves += 1

    def _admit(self, admission: Admission) -> None:
        assert admission.row not in self.rows, "a row is used twice"
        assert 0 <= admission.row < self._max_rows
        assert admission.slot not in self.slots.values(), "a slot is used twice"
        self.rows[admission.row] = []
        self.slots[admission.row] = admission.slot
        self._admissions[admission.row] = admission
        self._outputs[admission.row] = len(admission.output)

    def _check_slots(self, plan: StepPlan) -> None:
        assert all(slot.index < plan.pool_slots[slot.pool] for slot in self.slots.values()), "a slot is cut off"
        assert self.rows or not any(plan.pool_slots), "an idle device keeps slots"

    def _copy(self, plan: StepPlan, held_before: dict[int, int]) -> None:
        admitted = {admission.row for admission in plan.admissions}
        assert not (plan.copies and self.checkpoint_tokens), "a copy of a row with states"
        for copy in plan.copies:
            assert copy.row in admitted
            assert copy.source not in admitted
            assert held_before[copy.source] >= copy.tokens > 0, "the source does not hold so much"
            assert self.rows[copy.row] == []
            self.rows[copy.row] = self.rows[copy.source][: copy.tokens]
            self.copied_tokens += copy.tokens

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
            assert len(tokens) - BLOCK_TOKENS < restore.tokens <= len(tokens)
            if self.checkpoint_tokens:
                assert self.checkpoints[restore.block_ids[-1]] == tokens, "the states of other tokens"
                assert len(tokens) == restore.tokens, "states cannot be cut"
            del tokens[restore.tokens :]
            self.restored_tokens += len(tokens)

    def _compute(self, plan: StepPlan) -> StepResult:
        fed = sum(len(chunk.token_ids) for chunk in plan.prefills) + len(plan.decodes)
        assert fed <= self._budget_tokens, "the token budget is broken"
        assert len({chunk.row for chunk in plan.prefills}) == len(plan.prefills)
        assert len({decode.row for decode in plan.decodes}) == len(plan.decodes)
        for chunk in plan.prefills:
            self.prefilled_tokens += len(chunk.token_ids)
            self._feed(chunk.row, chunk.start, chunk.token_ids)
            assert not chunk.targets or len(chunk.targets) == len(chunk.token_ids)
        before, self._sampled = self._sampled, {}
        for decode in plan.decodes:
            token_id = before[decode.row] if decode.token_id is None else decode.token_id
            self._feed(decode.row, decode.start, [token_id])
            assert decode.output_position == self._outputs[decode.row], "an output position is skipped or sampled twice"
            self._outputs[decode.row] += 1
            self._sampled[decode.row] = next_token(self.rows[decode.row])
        sampled = [self._sampled[decode.row] for decode in plan.decodes]
        return StepResult(sampled, 0.0, self._logprobs(plan), self._scores(plan))

    def _scores(self, plan: StepPlan) -> dict[int, Sequence[TokenLogprobs]]:
        """A target's log probability is its token id, negative."""
        return {
            chunk.row: [TokenLogprobs(-float(target), 1, [], []) for target in chunk.targets]
            for chunk in plan.prefills
            if chunk.targets
        }

    def _logprobs(self, plan: StepPlan) -> dict[int, TokenLogprobs]:
        return {
            index: TokenLogprobs(-float(decode.output_position), 1, [], [])
            for index, decode in enumerate(plan.decodes)
            if self._admissions[decode.row].sampling.logprobs is not None
        }

    def _feed(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        assert start == len(self.rows[row]), "a position is skipped or fed twice"
        assert token_ids
        self.rows[row].extend(token_ids)
        assert len(self.rows[row]) <= self.pool_lengths[self.slots[row].pool], "the slot is too short"
        admission = self._admissions[row]
        known = [*admission.prompt, *admission.output]
        assert list(token_ids) == known[start : start + len(token_ids)] or start >= len(known), "not its tokens"
