"""How the tokens of one step are shared among the running sequences: the scheduling policy, and nothing else."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Sequences

import msgspec

from engine_core.chunk_budget import SMALLEST_CHUNK
from engine_core.device import DecodeRow, PrefillChunk
from engine_core.sequence import Sequence, Status
from engine_core.step_cost import StepShape


class StepShare(msgspec.Struct, frozen=True):
    """What one sequence does in a step: a chunk of prefill, or a decode, or the last chunk and then a decode."""

    sequence: Sequence
    prefill_tokens: int
    decodes: bool
    stay: int
    """Of the sequence when this was planned."""

    @property
    def counts(self) -> bool:
        """Whether the sequence is still in that stay: else it has ended meanwhile, or lost its row."""
        return self.sequence.stay == self.stay

    def prefill_chunk(self) -> PrefillChunk:
        """What the device is to do; to be asked before the sequence is `planned`."""
        sequence, start = self.sequence, self.sequence.num_computed
        token_ids, wanted = sequence.tokens(start, self.prefill_tokens), sequence.wanted_scores
        if wanted is None:
            return PrefillChunk(sequence.row, start, token_ids)
        targets = sequence.tokens(start + 1, self.prefill_tokens)
        return PrefillChunk(sequence.row, start, token_ids, targets, wanted)

    def decode_row(self) -> DecodeRow:
        """What the device is to do; to be asked before the sequence is `planned`."""
        sequence = self.sequence
        return DecodeRow(sequence.row, sequence.length - 1, sequence.last_token, sequence.output_position)


class StepTokens(msgspec.Struct, frozen=True):
    """What a step may hold."""

    total: int
    """Tokens in all, at least one for each sequence that is ready to decode."""
    prefill: int
    """Tokens of prefill."""


def step_shape(shares: Sequences[StepShare]) -> StepShape:
    """All shares of a step together."""
    return StepShape(sum(share.prefill_tokens for share in shares), sum(share.decodes for share in shares))


PrefillOrder = tuple[int, int, int, float]


def prefill_order(sequence: Sequence, admitted_tokens: int, available_tokens: int = 0) -> PrefillOrder:
    """Who is prefilled first: the smaller.

    By priority; then those that are overdue, by when they were due; then the one with the least left, of equals the
    one that was admitted first. `admitted_tokens` is where the count that `Sequence.due` refers to stands. For one
    that still waits: the order that it would have; it becomes due anew, and `available_tokens` of it would be copied.
    """
    priority, _ = sequence.order
    if sequence.status is not Status.RUNNING:
        return (priority, 1, sequence.prefill_left - available_tokens, math.inf)
    if sequence.due <= admitted_tokens:
        return (priority, 0, 0, sequence.due)
    return (priority, 1, sequence.prefill_left, sequence.due)


def share_step(
    running: Sequences[Sequence], tokens: StepTokens, admitted_tokens: int, chunk_tokens: Callable[[Sequence], int]
) -> list[StepShare]:
    """Shares of at most `tokens` in all; a sequence that gets nothing is left out.

    One token for each sequence that is ready to decode; the rest in prefill chunks, in `prefill_order`. Who is
    prefilled with a token of the total left decodes in the same step: that is one step less to the first token. But a
    chunk has `chunk_tokens` at most, and one that has so many is not followed by a decode.
    """
    shares = [StepShare(sequence, 0, True, sequence.stay) for sequence in running if sequence.prefill_left == 0]
    left = tokens.total - len(shares)
    prefill_left = tokens.prefill
    waiting = [sequence for sequence in running if sequence.prefill_left]
    for sequence in sorted(waiting, key=lambda s: prefill_order(s, admitted_tokens)):
        border = chunk_tokens(sequence)
        wanted = min(sequence.prefill_left, border)
        chunk = min(wanted, left, prefill_left)
        completes = chunk == sequence.prefill_left < border
        if chunk <= 0 or (chunk < SMALLEST_CHUNK and chunk < wanted and prefill_left < tokens.prefill):
            break  # a forward over a few tokens more would cost as much as one over many
        left -= chunk
        prefill_left -= chunk
        decodes = completes and left > 0
        left -= decodes
        shares.append(StepShare(sequence, chunk, decodes, sequence.stay))
    return shares
