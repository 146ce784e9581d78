import mlx.core as mx
import numpy as np

from engine_core.slot_buffers import LayerLayout, SlotBuffers
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
