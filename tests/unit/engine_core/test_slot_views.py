import mlx.core as mx
import numpy as np
import pytest

from engine_core.mlx_lm_adapter import KVCache
from engine_core.slot_buffers import LayerBuffers, LayerLayout
from engine_core.slot_shape import SlotShape
from engine_core.slot_views import DecodeStep, DecodeView, PrefillView

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=3, key_dtype=mx.float32, value_dtype=mx.float32)


def layer() -> LayerBuffers:
    return LayerBuffers(LAYOUT, SlotShape(5, 256))


def test_a_row_attends_to_its_own_tokens() -> None:
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


def test_each_row_writes_at_its_own_position() -> None:
    buffers = layer()
    view = DecodeView(buffers, DecodeStep(1, [7, 256, 0], last_position=7, length=256))
    keys, values = mx.random.normal((3, 2, 1, 4)), mx.random.normal((3, 2, 1, 3))
    read_keys, read_values = view.update_and_fetch(keys, values)
    assert (read_keys.shape, read_values.shape) == ((3, 2, 64, 4), (3, 2, 64, 3))
    written = np.array(buffers.keys)
    for index, (row, position) in enumerate([(1, 7), (2, 256), (3, 0)]):
        assert (written[row, :, position] == np.array(keys)[index, :, 0]).all()
        written[row, :, position] = 0
    assert (written == 0).all()


def test_a_decode_row_takes_one_token() -> None:
    view = DecodeView(layer(), DecodeStep(0, [1, 2], last_position=2, length=256))
    with pytest.raises(ValueError, match="not 2"):
        view.make_mask(2, return_array=True)


def test_prefill_of_a_row_looks_like_a_plain_cache_at_its_offset() -> None:
    buffers, plain = layer(), KVCache()
    for start, n in ((0, 5), (5, 3)):
        view = PrefillView(buffers, 2, start)
        for window in (None, 4):
            ours, theirs = (c.make_mask(n, return_array=True, window_size=window) for c in (view, plain))
            assert mx.array_equal(ours, theirs)
        keys, values = mx.random.normal((1, 2, n, 4)), mx.random.normal((1, 2, n, 3))
        found, expected = view.update_and_fetch(keys, values), plain.update_and_fetch(keys, values)
        assert all(mx.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert (np.array(buffers.keys)[[0, 1, 3, 4]] == 0).all()
