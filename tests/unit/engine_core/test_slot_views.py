import mlx.core as mx
import msgspec
import numpy as np
import pytest

from engine_core.mlx_lm_adapter import KVCache, RotatingKVCache
from engine_core.slot_buffers import LayerBuffers
from engine_core.slot_layout import LayerLayout, StateLayout
from engine_core.slot_views import DecodeStep, DecodeView, PrefillView, nested

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=3, key_dtype=mx.float32, value_dtype=mx.float32)


def layer() -> LayerBuffers:
    return LayerBuffers(LAYOUT, 5, 256)


def test_a_slot_attends_to_its_own_tokens() -> None:
    mask = np.array(DecodeStep(1, [0, 99, 5], last_position=99, length=256).mask(None))
    assert mask.shape == (3, 1, 1, 128)
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0], list(range(100)), list(range(6))]


def test_a_window_leaves_the_last_tokens() -> None:
    step = DecodeStep(0, [2, 50], last_position=50, length=256)
    mask = np.array(step.mask(8))
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0, 1, 2], list(range(43, 51))]
    assert step.mask(8) is step.mask(8), "all layers share one mask"
    assert not mx.array_equal(step.mask(8), step.mask(None))


def test_attention_reads_no_more_than_the_buffer_has() -> None:
    assert DecodeStep(0, [255], last_position=255, length=256).read_length == 256
    assert DecodeStep(0, [64], last_position=64, length=256).read_length == 128
    assert DecodeStep(0, [63, 256], last_position=63, length=256).read_length == 64


def test_each_slot_writes_at_its_own_position() -> None:
    buffers = layer()
    view = DecodeView(buffers, None, DecodeStep(1, [7, 256, 0], last_position=7, length=256))
    keys, values = mx.random.normal((3, 2, 1, 4)), mx.random.normal((3, 2, 1, 3))
    read_keys, read_values = view.update_and_fetch(keys, values)
    assert (read_keys.shape, read_values.shape) == ((3, 2, 64, 4), (3, 2, 64, 3))
    written = np.array(buffers.keys)
    for index, (row, position) in enumerate([(1, 7), (2, 256), (3, 0)]):
        assert (written[row, :, position] == np.array(keys)[index, :, 0]).all()
        written[row, :, position] = 0
    assert (written == 0).all()


def test_a_slot_that_decodes_takes_one_token() -> None:
    view = DecodeView(layer(), None, DecodeStep(0, [1, 2], last_position=2, length=256))
    with pytest.raises(ValueError, match="not 2"):
        view.make_mask(2, return_array=True)


def test_prefill_of_a_slot_looks_like_a_plain_cache_at_its_offset() -> None:
    buffers, plain = layer(), KVCache()
    for start, n in ((0, 5), (5, 3)):
        view = PrefillView(buffers, None, 2, start)
        for window in (None, 4):
            ours, theirs = (c.make_mask(n, return_array=True, window_size=window) for c in (view, plain))
            assert mx.array_equal(ours, theirs)
        keys, values = mx.random.normal((1, 2, n, 4)), mx.random.normal((1, 2, n, 3))
        found, expected = view.update_and_fetch(keys, values), plain.update_and_fetch(keys, values)
        assert all(mx.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert (np.array(buffers.keys)[[0, 1, 3, 4]] == 0).all()


def test_prefill_of_a_slot_with_a_window_looks_like_a_ring_at_its_offset() -> None:
    buffers, ring = layer(), RotatingKVCache(6)
    start = 0
    for n in (3, 2, 7, 4, 30):
        view = PrefillView(buffers, 6, 2, start)
        for window in (None, 6):
            ours, theirs = (c.make_mask(n, return_array=True, window_size=window) for c in (view, ring))
            assert mx.array_equal(ours, theirs)
        keys, values = mx.random.normal((1, 2, n, 4)), mx.random.normal((1, 2, n, 3))
        found, expected = view.update_and_fetch(keys, values), ring.update_and_fetch(keys, values)
        assert all(mx.array_equal(*pair) for pair in zip(found, expected, strict=True))
        assert all(mx.array_equal(*pair) for pair in zip(view.keys_and_values(), expected, strict=True))
        start += n
        assert view.offset == ring.offset == start
    assert PrefillView(buffers, 6, 2, start).make_mask(1) is None, "one token attends to all that is read"


def test_the_window_of_a_layer_bounds_the_one_that_the_model_asks_for() -> None:
    step = DecodeStep(0, [2, 50], last_position=50, length=256)
    view = DecodeView(layer(), 8, step)
    assert view.make_mask(1) is view.make_mask(1, window_size=8) is view.make_mask(1, window_size=99) is step.mask(8)
    assert view.make_mask(1, window_size=3) is step.mask(3)


def test_every_slot_attends_to_something() -> None:
    step = DecodeStep(0, [200, 3], last_position=3, length=256)
    assert all(np.array(step.mask(window)).any(axis=-1).all() for window in (None, 8))


def test_a_view_that_was_written_can_be_read_again_at_the_next_position() -> None:
    view = DecodeView(layer(), None, DecodeStep(1, [7, 2], last_position=7, length=256))
    fetched = view.update_and_fetch(mx.ones((2, 2, 1, 4)), mx.ones((2, 2, 1, 3)))
    assert all(mx.array_equal(*pair) for pair in zip(view.keys_and_values(), fetched, strict=True))
    assert view.offset.tolist() == [8, 3]


def test_keys_and_values_may_have_no_dimension() -> None:
    buffers = LayerBuffers(msgspec.structs.replace(LAYOUT, value_dim=0), 5, 256)
    for view, rows, n in (
        (PrefillView(buffers, None, 2, 0), 1, 3),
        (DecodeView(buffers, None, DecodeStep(1, [3, 2], last_position=3, length=256)), 2, 1),
    ):
        keys, values = view.update_and_fetch(mx.ones((rows, 2, n, 4)), mx.zeros((rows, 2, n, 0)))
        mx.eval(keys, values, buffers.keys, buffers.values)
        assert values.size == 0 and keys.shape[2] == values.shape[2]


def test_views_are_nested_as_the_layouts_are() -> None:
    state = StateLayout((None,))
    views = nested([LAYOUT, (state, LAYOUT), state], iter(["k0", "k1"]), iter(["s0", "s1"]))
    assert (views[0], views[1][0], views[1][1], views[2]) == ("k0", "s0", "k1", "s1")
