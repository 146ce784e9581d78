import mlx.core as mx
import numpy as np
import pytest

from engine_core.device import Slot
from engine_core.ragged_step import WIDEST_GAP, FedChunk, FedToken, RaggedStep

LENGTHS = (128, 512)


def step_of(*decodes: tuple[int, int, int], chunks: tuple[tuple[int, int, int, int], ...] = ()) -> RaggedStep:
    """(pool, slot, position), and chunks (pool, slot, start, tokens)."""
    return RaggedStep(
        [FedChunk(Slot(pool, slot), start, tokens) for pool, slot, start, tokens in chunks],
        [FedToken(Slot(pool, slot), position) for pool, slot, position in decodes],
        LENGTHS,
    )


def attended(step: RaggedStep, run: int, window: int | None = None) -> list[list[int]]:
    """Positions that each slot of a run attends to."""
    read = step.runs[run].positions(window)
    mask = np.array(step.runs[run].mask(window, heads=4))
    assert mask.shape[2:] == (1, read.stop - read.start)
    return [(np.flatnonzero(row) + read.start).tolist() for row in mask[:, 0, 0]]


def test_decode_rows_are_fed_by_pool_and_slot_and_come_back_as_given() -> None:
    step = step_of((1, 0, 300), (0, 1, 7), (0, 3, 5))
    assert step.order == [1, 2, 0]
    assert step.positions.tolist() == [7, 5, 300]
    assert step.wanted is not None and step.wanted.tolist() == [2, 0, 1]
    assert step_of((0, 1, 7), (0, 3, 5)).wanted is None


def test_each_row_attends_to_its_own_tokens() -> None:
    step = step_of((0, 1, 0), (0, 2, 99), (0, 3, 5))
    assert attended(step, 0) == [[0], list(range(100)), list(range(6))]
    assert attended(step, 0, window=8) == [[0], list(range(92, 100)), list(range(6))]


def test_a_window_bounds_what_is_read() -> None:
    step = step_of((1, 0, 400), (1, 1, 300))
    assert step.runs[0].positions(None) == slice(0, 448)
    assert step.runs[0].positions(64) == slice(192, 448)
    assert attended(step, 0, window=64) == [list(range(337, 401)), list(range(237, 301))]


def test_no_more_is_read_than_a_slot_has() -> None:
    assert step_of((0, 0, 127)).runs[0].positions(None) == slice(0, 128)
    assert step_of((0, 0, 63)).runs[0].positions(None) == slice(0, 64)
    assert step_of((0, 0, 64)).runs[0].positions(None) == slice(0, 128)


def test_all_layers_share_a_mask() -> None:
    run = step_of((0, 0, 5)).runs[0]
    assert run.mask(None, 4) is run.mask(None, 4)
    assert run.mask(None, 4) is not run.mask(3, 4)


def test_slots_between_rows_attend_to_something_and_wide_gaps_begin_a_run() -> None:
    far = 3 + WIDEST_GAP + 2
    step = step_of((0, 0, 9), (0, 3, 5), (0, far, 2), (1, far + 1, 4))
    assert [(run.pool, run.slots, run.tokens) for run in step.runs] == [
        (0, slice(0, 4), slice(0, 2)),
        (0, slice(far, far + 1), slice(2, 3)),
        (1, slice(far + 1, far + 2), slice(3, 4)),
    ]
    assert step.runs[0].has_gaps and not step.runs[1].has_gaps
    assert step.runs[0].places.tolist() == [0, 3]
    assert [step.runs[0].sources.tolist()[place] for place in (0, 3)] == [0, 1]
    assert all(attended(step, 0, window=2))


def test_tokens_are_written_to_their_slots_pool_by_pool() -> None:
    step = step_of((1, 4, 300), (0, 2, 5), chunks=((0, 1, 6, 3), (1, 0, 0, 2)))
    assert step.num_tokens == 7
    assert step.positions.tolist() == [5, 300, 6, 7, 8, 0, 1]
    found = {
        writes.pool: (
            None if writes.tokens is None else writes.tokens.tolist(),
            writes.slots.tolist(),
            writes.positions.tolist(),
        )
        for writes in step.writes
    }
    assert found == {0: ([0, 2, 3, 4], [2, 1, 1, 1], [5, 6, 7, 8]), 1: ([1, 5, 6], [4, 0, 0], [300, 0, 1])}
    assert step_of((0, 2, 5), (0, 3, 5)).writes[0].tokens is None


@pytest.mark.parametrize(("start", "window", "first"), [(0, None, 0), (20, None, 0), (20, 8, 13), (3, 8, 0)])
def test_a_chunk_reads_what_one_of_its_tokens_attends_to(start: int, window: int | None, first: int) -> None:
    span = step_of(chunks=((0, 1, start, 5),)).spans[0]
    assert span.positions(window) == slice(first, start + 5)
    mask = span.mask(window)
    if window is None:
        assert isinstance(mask, str) and mask == "causal"
    elif isinstance(mask, mx.array):
        rows = [(np.flatnonzero(row) + first).tolist() for row in np.array(mask)]
        assert rows == [list(range(max(0, p - window + 1), p + 1)) for p in range(start, start + 5)]


def test_a_chunk_of_one_token_needs_no_mask() -> None:
    span = step_of(chunks=((0, 1, 20, 1),)).spans[0]
    assert span.mask(8) is None and span.positions(8) == slice(13, 21)
