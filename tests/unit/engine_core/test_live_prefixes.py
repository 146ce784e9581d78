"""What sequences share, and what of it is there, against a reference that compares token by token."""

import hypothesis.strategies as st
from hypothesis import given, settings
from sequence_samples import sequence_of

from engine_core.live_prefixes import about_to_compute, longest_copy, shared_tokens
from engine_core.prefix_cache import MIN_COPIED_TOKENS, PrefixCache
from engine_core.sequence import Sequence
from protocol.prefix_hash import BLOCK_TOKENS

PIECES = st.sampled_from([[1] * 7, [2] * 24, [3] * 64, list(range(64)), [4]])
PROMPTS = st.lists(PIECES, min_size=1, max_size=6).map(lambda pieces: [token for piece in pieces for token in piece])
SALTS = st.sampled_from(["", "", "", "s"])


def known(sequence: Sequence) -> list[int]:
    return [*sequence.prompt, *sequence.output]


def common(one: Sequence, other: Sequence) -> int:
    if one.request.cache_salt != other.request.cache_salt:
        return 0
    pairs = list(zip(known(one), known(other), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


@st.composite
def running(draw: st.DrawFn, row: int) -> Sequence:
    """Prefilled in part, or decoding, with or without a token that is not known yet."""
    sequence = sequence_of(draw(PROMPTS), row, draw(SALTS))
    sequence.planned(draw(st.integers(0, sequence.prefill_left)), decodes=False)
    if sequence.prefill_left == 0:
        for token in draw(st.lists(st.integers(1, 4), max_size=3)):
            sequence.planned(0, decodes=True)
            sequence.sampled(token)
        if draw(st.booleans()):
            sequence.planned(0, decodes=True)
    return sequence


ROWS = st.tuples(*[running(row=row) for row in range(4)]).map(list)
WAITING = st.builds(lambda prompt, salt: sequence_of(prompt, 9, salt, waits=True), PROMPTS, SALTS)


@settings(deadline=None)
@given(WAITING, ROWS)
def test_shared_tokens_are_counted_to_the_first_that_differs(waiting: Sequence, rows: list[Sequence]) -> None:
    for row in rows:
        assert shared_tokens(waiting, row) == shared_tokens(row, waiting) == common(waiting, row)


@settings(deadline=None)
@given(WAITING, ROWS, st.integers(0, 70))
def test_the_row_that_has_most_is_found(waiting: Sequence, rows: list[Sequence], beyond: int) -> None:
    beyond = min(beyond, waiting.num_tokens - 1)
    usable = [min(common(waiting, row), row.num_computed, waiting.num_tokens - 1) for row in rows]
    donor, tokens = longest_copy(waiting, rows, beyond)
    assert tokens == max(beyond, *usable)
    assert (donor is None) == (max(usable) <= beyond)
    assert donor is None or usable[rows.index(donor)] == tokens


@settings(deadline=None)
@given(WAITING, ROWS, st.integers(1, 200))
def test_what_will_be_computed_is_what_is_shared_and_not_the_last_token(
    waiting: Sequence, rows: list[Sequence], at_least: int
) -> None:
    coming = [
        row
        for row in rows
        if row.prefill_left and min(common(waiting, row), row.num_tokens - 1, waiting.num_tokens - 1) >= at_least
    ]
    assert about_to_compute(waiting, rows, at_least) == bool(coming)


@settings(deadline=None)
@given(WAITING, ROWS, ROWS)
def test_what_is_available_is_the_most_that_blocks_or_rows_have(
    waiting: Sequence, gone: list[Sequence], rows: list[Sequence]
) -> None:
    cache = PrefixCache(1_000 * BLOCK_TOKENS)
    cache.save(gone)
    cache.take_orders(0, ())
    stored = [min(common(waiting, s), min(s.num_computed, s.num_tokens) // BLOCK_TOKENS * BLOCK_TOKENS) for s in gone]
    live = [min(common(waiting, row), row.num_computed) for row in rows]
    most = min(max(*stored, *live), waiting.num_tokens - 1)
    assert cache.available_tokens(waiting, rows) == (most if most >= MIN_COPIED_TOKENS else 0)
    cache.check_invariants(0)
