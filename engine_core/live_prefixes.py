"""What a waiting sequence has in common with those that run: their rows can be copied from. Pure functions.

A row has the KV of more tokens than are stored of it: those after its last whole block, and those of a prompt that
is shorter than one. And what a running sequence is about to compute need not be computed twice.
"""

from collections.abc import Iterable

from engine_core.sequence import Sequence
from protocol.prefix_hash import BLOCK_TOKENS


def shared_tokens(one: Sequence, other: Sequence) -> int:
    """How many known tokens both begin with; 0 when they have different roots (another salt, say), or none."""
    chain, its_chain = one.chain, other.chain
    if not (chain and its_chain and chain[0] == its_chain[0]):
        return 0
    same, differ = 0, min(len(chain), len(its_chain))
    while differ - same > 1:  # equal hashes have equal hashes before them
        middle = (same + differ) // 2
        if chain[middle] == its_chain[middle]:
            same = middle
        else:
            differ = middle
    start = same * BLOCK_TOKENS
    rest, its_rest = one.tokens(start, BLOCK_TOKENS), other.tokens(start, BLOCK_TOKENS)
    length = min(len(rest), len(its_rest))
    return start + next((i for i in range(length) if rest[i] != its_rest[i]), length)


def longest_copy(sequence: Sequence, donors: Iterable[Sequence], beyond: int) -> tuple[Sequence | None, int]:
    """Whose row has most tokens of `sequence`, but for its last one, and how many; (None, beyond) if none has more."""
    best: tuple[Sequence | None, int] = (None, beyond)
    for donor in donors:
        usable = min(donor.num_computed, donor.num_tokens, sequence.num_tokens - 1)
        if usable > best[1] and _agree_at(sequence, donor, best[1]):
            shared = min(usable, shared_tokens(sequence, donor))
            if shared > best[1]:
                best = donor, shared
    return best


def longest_shared(sequence: Sequence, running: Iterable[Sequence]) -> int:
    """Most known tokens that it has in common with one of the others."""
    return max((shared_tokens(sequence, other) for other in running if other is not sequence), default=0)


def about_to_compute(sequence: Sequence, running: Iterable[Sequence], at_least: int) -> bool:
    """Whether the first `at_least` tokens of `sequence`, or more of them, will soon be in the row of one that runs."""
    return any(
        other.prefill_left > 0
        and at_least <= min(other.num_tokens, sequence.num_tokens) - 1
        and _agree_at(sequence, other, at_least - 1)
        and shared_tokens(sequence, other) >= at_least
        for other in running
    )


def _agree_at(one: Sequence, other: Sequence, place: int) -> bool:
    """Spares most of those that share little a closer look; both have known tokens there."""
    return one.tokens(place, 1)[0] == other.tokens(place, 1)[0]
