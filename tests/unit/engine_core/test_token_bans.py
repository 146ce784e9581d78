from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine_core.token_bans import AllowedRows, BadWordRows, OutputEnds, allowed_mask
from protocol.sampling import SamplingParams

VOCAB = 6
TOKENS = st.integers(0, VOCAB - 1)
Words = tuple[tuple[int, ...], ...]


def params(words: Words = (), allowed: tuple[int, ...] | None = None) -> SamplingParams:
    return SamplingParams(max_tokens=9, bad_words_token_ids=words, allowed_token_ids=allowed)


def banned(logits: mx.array) -> list[set[int]]:
    return [set(np.flatnonzero(np.isneginf(row)).tolist()) for row in np.array(logits)]


def expected_bans(words: Words, output: Sequence[int]) -> set[int]:
    return {
        word[-1]
        for word in words
        if len(output) >= len(word) - 1 and tuple(output)[len(output) + 1 - len(word) :] == word[:-1]
    }


@given(
    st.lists(
        st.tuples(
            st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=4).map(tuple),
            st.lists(st.integers(0, 2), max_size=5),
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_the_last_token_of_a_word_is_banned_where_the_output_ends_with_the_rest(
    rows: list[tuple[Words, list[int]]], sampled: list[int]
) -> None:
    ends = OutputEnds()
    for row, (words, output) in enumerate(rows):
        ends.admit(row, output, params(words))
    # The rows stand behind one that has no bad words.
    places = range(1, len(rows) + 1)
    batch = BadWordRows(places, range(len(rows)), [params(words) for words, _ in rows], VOCAB)
    for token in sampled:
        found = banned(ends.ban(mx.zeros((len(rows) + 1, VOCAB)), batch))
        assert found == [set(), *(expected_bans(words, output) for words, output in rows)]
        ends.add(batch, mx.array([5, *([token] * len(rows))], mx.uint32))
        for _, output in rows:
            output.append(token)


def test_words_with_ids_beyond_the_vocabulary_ban_nothing() -> None:
    ends = OutputEnds()
    sampling = params(((VOCAB,), (1, VOCAB + 5), (-1,)))
    ends.admit(0, [1], sampling)
    batch = BadWordRows([0], [0], [sampling], VOCAB)
    assert banned(ends.ban(mx.zeros((1, VOCAB)), batch)) == [set()]
    ends.add(batch, mx.array([1], mx.uint32))


def test_only_allowed_tokens_of_the_rows_that_ask_stay() -> None:
    masks = [allowed_mask(params(allowed=allowed), VOCAB) for allowed in ((2, 4, 2, VOCAB, -1), (0,))]
    logits = AllowedRows([0, 2], masks).apply(mx.zeros((3, VOCAB)))
    assert banned(logits) == [{0, 1, 3, 5}, set(), {1, 2, 3, 4, 5}]
