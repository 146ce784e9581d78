import mlx.core as mx
import numpy as np

from engine_core.row_states import Rows, RowStates, StateBuffers
from engine_core.slot_layout import LayerLayout, StateArray, StateLayout

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=8, key_dtype=mx.float32, value_dtype=mx.float16)
STATE = StateLayout((StateArray((3, 2), mx.float32), None))


def state(rows: int) -> StateBuffers:
    buffers = StateBuffers(STATE, rows)
    buffers.store(Rows(range(rows)), [mx.arange(rows * 6).reshape(rows, 3, 2), None])
    return buffers


def values(buffers: StateBuffers) -> np.ndarray:
    return np.array(buffers.arrays[0])


def test_the_state_of_a_sequence_that_starts_is_none() -> None:
    assert state(3).read(Rows([1]), at_start=True) == [None, None]
    read = state(3).read(Rows([1]))
    assert np.array(read[0]).ravel().tolist() == list(range(6, 12)) and read[1] is None


def test_rows_are_read_in_the_order_given() -> None:
    read = state(4).read(Rows([3, 0]))[0]
    assert np.array(read)[:, 0, 0].tolist() == [18, 0]


def test_only_the_rows_given_are_stored() -> None:
    buffers, before = state(4), values(state(4))
    buffers.store(Rows([2]), [mx.full((1, 3, 2), -1.0), None])
    assert (values(buffers)[[0, 1, 3]] == before[[0, 1, 3]]).all() and (values(buffers)[2] == -1).all()
    buffers.store(Rows([3, 0]), [mx.stack([mx.full((3, 2), -2.0), mx.full((3, 2), -3.0)]), None])
    assert (values(buffers)[3] == -2).all() and (values(buffers)[0] == -3).all()


def test_a_state_is_kept_in_the_dtype_of_the_layout() -> None:
    for rows in ([0, 1], [1]):
        buffers = state(2)
        buffers.store(Rows(rows), [mx.zeros((len(rows), 3, 2), mx.float16), None])
        assert buffers.arrays[0] is not None and buffers.arrays[0].dtype == mx.float32


def test_rows_double_up_to_the_most_there_can_be_and_keep_their_states() -> None:
    states = RowStates([STATE, (LAYOUT, STATE)], max_rows=5)
    found = []
    for rows in (1, 2, 3, 3, 5):
        states.reserve(rows)
        states.check_invariants()
        found.append(states.arrays()[0].shape[0])
        states.layers[1].store(Rows([0]), [mx.ones((1, 3, 2)), None])
    assert found == [1, 2, 4, 4, 5]
    assert (values(states.layers[1])[0] == 1).all() and (values(states.layers[1])[1:] == 0).all()
    states.reserve(0)
    states.check_invariants()
    assert states.arrays() == []


def test_a_model_without_states_has_none() -> None:
    states = RowStates([LAYOUT], max_rows=5)
    states.reserve(3)
    states.check_invariants()
    assert not states.exist and states.layers == [] and RowStates([STATE], 1).exist


def test_a_state_does_not_keep_the_chunk_that_it_is_the_end_of() -> None:
    buffers = state(1)
    chunk = mx.zeros((1, 10_000, 2))
    mx.eval(chunk, buffers.arrays[0])
    active = mx.get_active_memory()
    buffers.store(Rows([0]), [chunk[:, -3:], None])
    mx.eval(buffers.arrays[0])
    del chunk
    assert active - mx.get_active_memory() >= 80_000
