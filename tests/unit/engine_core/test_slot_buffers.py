import mlx.core as mx
import numpy as np
import pytest

from engine_core.slot_buffers import SlotBuffers, StateBuffers
from engine_core.slot_layout import LayerLayout, StateArray, StateLayout
from engine_core.slot_shape import SlotShape

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=8, key_dtype=mx.float32, value_dtype=mx.float16)


def filled(shape: SlotShape, layers: int = 3) -> SlotBuffers:
    buffers = SlotBuffers([LAYOUT] * layers)
    buffers.resize(shape)
    for layer in buffers.layers:
        layer.keys[...] = mx.arange(layer.keys.size).reshape(layer.keys.shape)
        layer.values[...] = mx.ones(layer.values.shape, mx.float16)
    mx.eval(buffers.arrays())
    return buffers


def test_a_token_costs_what_its_keys_and_values_take() -> None:
    assert LAYOUT.bytes_per_token == 2 * (4 * 4 + 8 * 2)


def test_growth_keeps_what_was_cached() -> None:
    buffers = filled(SlotShape(2, 256))
    before = np.array(buffers.layers[0].keys)
    buffers.resize(SlotShape(5, 512))
    buffers.check_invariants()
    after = np.array(buffers.layers[0].keys)
    assert (after[:2, :, :257] == before).all()
    assert (after[2:] == 0).all() and (after[:, :, 257:] == 0).all()
    assert buffers.layers[0].values.dtype == mx.float16


def test_rows_and_length_may_shrink() -> None:
    buffers = filled(SlotShape(4, 512))
    before = np.array(buffers.layers[2].keys)
    buffers.resize(SlotShape(1, 1024))
    buffers.check_invariants()
    assert (np.array(buffers.layers[2].keys)[:1, :, :513] == before[:1]).all()


@pytest.mark.parametrize("shape", [SlotShape(8, 256), SlotShape(2, 1024), SlotShape(2, 256)])
def test_what_shrinks_frees_memory_at_once_and_is_then_written_in_place(shape: SlotShape) -> None:
    buffers = SlotBuffers([LAYOUT, LAYOUT])
    before = mx.get_active_memory()
    buffers.resize(SlotShape(8, 1024))
    buffers.resize(shape)
    asked = (shape.rows * (shape.length + 1)) * 2 * LAYOUT.bytes_per_token
    assert mx.get_active_memory() - before < 1.1 * asked
    for array in buffers.arrays():
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        array[:1, :, :1] = 1
        mx.eval(array)
        assert mx.get_peak_memory() - active < array.nbytes / 4


def test_an_empty_shape_frees_all_memory() -> None:
    before = mx.get_active_memory()
    buffers = filled(SlotShape(8, 512))
    assert mx.get_active_memory() > before
    buffers.resize(SlotShape())
    buffers.check_invariants()
    assert mx.get_active_memory() == before


def test_growth_needs_one_layer_twice_and_no_more() -> None:
    buffers = filled(SlotShape(8, 1024), layers=20)
    one_buffer = buffers.layers[0].keys.nbytes
    mx.reset_peak_memory()
    buffers.resize(SlotShape(8, 2048))
    grown_bytes = sum(array.nbytes for array in buffers.arrays())
    assert mx.get_peak_memory() - mx.get_active_memory() <= 2 * one_buffer
    assert mx.get_active_memory() >= grown_bytes


STATE = StateLayout((StateArray((3, 2), mx.float32), None))


def state(rows: int) -> StateBuffers:
    buffers = StateBuffers(STATE, rows)
    buffers.store(slice(0, rows), [mx.arange(rows * 6).reshape(rows, 3, 2), None])
    return buffers


def values(buffers: StateBuffers) -> np.ndarray:
    return np.array(buffers.arrays[0])


def test_the_state_of_a_sequence_that_starts_is_none() -> None:
    assert state(3).read(slice(1, 2), start=0) == [None, None]
    read = state(3).read(slice(1, 2), start=5)
    assert np.array(read[0]).ravel().tolist() == list(range(6, 12)) and read[1] is None


def test_only_changed_rows_are_stored() -> None:
    buffers, before = state(4), values(state(4))
    buffers.store(slice(1, 3), [mx.full((2, 3, 2), -1.0), None], changed=mx.array([False, True]))
    assert (values(buffers)[[0, 1, 3]] == before[[0, 1, 3]]).all() and (values(buffers)[2] == -1).all()
    buffers.store(slice(0, 4), [mx.full((4, 3, 2), -2.0), None], changed=mx.array([True, False, False, False]))
    assert (values(buffers)[0] == -2).all() and (values(buffers)[1] == before[1]).all()


def test_a_state_is_kept_in_the_dtype_of_the_layout() -> None:
    buffers = state(2)
    for rows in (slice(0, 2), slice(1, 2)):
        buffers.store(rows, [mx.zeros((rows.stop - rows.start, 3, 2), mx.float16), None])
        assert buffers.arrays[0] is not None and buffers.arrays[0].dtype == mx.float32


def test_states_grow_by_the_row_alone() -> None:
    buffers = SlotBuffers([STATE, (LAYOUT, STATE)])
    buffers.resize(SlotShape(2, 256))
    buffers.check_invariants()
    buffers.states[1].store(slice(0, 2), [mx.ones((2, 3, 2)), None])
    first = buffers.states[0].arrays[0]
    buffers.resize(SlotShape(2, 512))
    assert buffers.states[0].arrays[0] is first
    buffers.resize(SlotShape(5, 512))
    buffers.check_invariants()
    grown = values(buffers.states[1])
    assert (grown[:2] == 1).all() and (grown[2:] == 0).all()
    buffers.resize(SlotShape())
    buffers.check_invariants()
    assert buffers.arrays() == []


def test_a_layer_that_writes_nothing_takes_no_memory_and_grows_like_others() -> None:
    buffers = SlotBuffers([LAYOUT, LayerLayout(0, 0, 0, mx.float32, mx.float32)])
    for shape in (SlotShape(2, 256), SlotShape(4, 512)):
        buffers.resize(shape)
        buffers.check_invariants()
    assert len(buffers.layers) == 2 and len(buffers.planes()) == 2


def test_a_state_does_not_keep_the_chunk_that_it_is_the_end_of() -> None:
    buffers = state(1)
    chunk = mx.zeros((1, 10_000, 2))
    mx.eval(chunk, buffers.arrays[0])
    active = mx.get_active_memory()
    buffers.store(slice(0, 1), [chunk[:, -3:], None])
    mx.eval(buffers.arrays[0])
    del chunk
    assert active - mx.get_active_memory() >= 80_000
