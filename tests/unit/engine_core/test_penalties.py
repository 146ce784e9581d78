import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import adjusted_logits

from engine_core.penalties import PenaltyCounts, PenaltyRows
from protocol.sampling import SamplingParams

VOCAB = 12
PARAMS = SamplingParams(max_tokens=9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=-0.7)


def logits_of(rows: int) -> mx.array:
    return mx.array(np.random.default_rng(3).normal(0, 2, (rows, VOCAB)).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "release", "add"]),
            st.integers(0, 4),
            st.lists(st.integers(0, VOCAB - 1), max_size=6),
        ),
        max_size=25,
    )
)
def test_counts_follow_any_sequence_of_joins_leaves_and_tokens(events: list[tuple[str, int, list[int]]]) -> None:
    counts = PenaltyCounts(VOCAB)
    sequences: dict[int, tuple[list[int], list[int]]] = {}
    for kind, row, tokens in events:
        if kind == "admit" and row not in sequences:
            sequences[row] = (tokens, tokens[::2])
            counts.admit(row, tokens, tokens[::2])
        elif kind == "release" and row in sequences:
            del sequences[row]
            counts.release(row)
        elif kind == "add" and row in sequences and tokens:
            sequences[row][1].append(tokens[0])
            counts.add(PenaltyRows([0], [row], [PARAMS]), mx.array(tokens[:1]))
        counts.check_invariants()
    if sequences:
        rows = sorted(sequences, reverse=True)
        logits = logits_of(len(rows))
        found = np.array(counts.apply(logits, PenaltyRows(range(len(rows)), rows, [PARAMS] * len(rows))))
        for index, row in enumerate(rows):
            expected = adjusted_logits(np.array(logits[index]), PARAMS, *sequences[row], eos=())
            assert found[index] == pytest.approx(expected, abs=1e-5)


def test_only_the_named_rows_of_the_batch_change() -> None:
    counts = PenaltyCounts(VOCAB)
    counts.admit(7, [1, 2], [3])
    logits = logits_of(3)
    before = np.array(logits)
    found = np.array(counts.apply(logits, PenaltyRows([1], [7], [PARAMS])))
    assert (np.array(logits) == before).all(), "the caller's array must stay as it was"
    assert (found[[0, 2]] == before[[0, 2]]).all()
    assert set(np.flatnonzero(found[1] != before[1]).tolist()) == {1, 2, 3}


def test_memory_is_freed_with_the_last_row() -> None:
    active = mx.get_active_memory()
    counts = PenaltyCounts(50_000)
    counts.admit(0, [1], [])
    counts.admit(5, [1], [])
    mx.eval(counts.arrays())
    counts.release(0)
    assert mx.get_active_memory() - active > 100_000
    counts.release(5)
    assert mx.get_active_memory() - active < 1000


def test_counting_a_token_changes_the_counts_in_place() -> None:
    vocab_size, rows = 50_000, 8
    counts = PenaltyCounts(vocab_size)
    for row in range(rows):
        counts.admit(row, [1, 2], [3])
    batch = PenaltyRows(range(rows), range(rows), [PARAMS] * rows)
    tokens = mx.array(list(range(rows)), mx.uint32)
    mx.eval(counts.arrays(), tokens)
    for _ in range(3):
        active = mx.get_active_memory()
        mx.reset_peak_memory()
        counts.add(batch, tokens)
        mx.eval(counts.arrays())
        assert mx.get_peak_memory() - active < vocab_size * 4, "the counts of all rows were copied"


def test_rows_may_have_more_tokens_than_there_was_room_for() -> None:
    counts = PenaltyCounts(5000)
    counts.admit(0, list(range(250)), [])
    batch = PenaltyRows([0], [0], [PARAMS])
    output = list(range(1000, 1010))
    for token in output:
        counts.add(batch, mx.array([token], mx.uint32))
        counts.check_invariants()
    counts.admit(1, list(range(3000)), [])
    logits = mx.array(np.random.default_rng(3).normal(0, 2, (1, 5000)).astype(np.float32))
    found = np.array(counts.apply(logits, batch))[0]
    expected = adjusted_logits(np.array(logits[0]), PARAMS, range(250), output, eos=())
    assert found == pytest.approx(expected, abs=1e-5)
