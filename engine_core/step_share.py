"""How the tokens of one step are shared among the running sequences: the scheduling policy, and nothing else."""

from collections.abc import Sequence as Sequences

import msgspec

from engine_core.sequence import Sequence


class StepShare(msgspec.Struct, frozen=True):
    """What one sequence does in a step: a chunk of prefill, or a decode, or the last chunk and then a decode."""

    sequence: Sequence
    prefill_tokens: int
    decodes: bool


def share_step(running: Sequences[Sequence], budget_tokens: int) -> list[StepShare]:
    """Shares of at most `budget_tokens` in all; a sequence that gets nothing is left out.

    One token for each sequence that is ready to decode; the rest in prefill chunks, first come, first served. Who is
    prefilled with a token of the budget left decodes in the same step: that is one step less to the first token.
    """
    shares = [StepShare(sequence, 0, True) for sequence in running if sequence.prefill_left == 0]
    left = budget_tokens - len(shares)
    for sequence in running:
        if left <= 0:
            break
        if sequence.prefill_left:
            chunk = min(sequence.prefill_left, left)
            left -= chunk
            decodes = chunk == sequence.prefill_left and left > 0
            left -= decodes
            shares.append(StepShare(sequence, chunk, decodes))
    return shares
