import mlx.core as mx
import numpy as np
import pytest

from engine_core.attention_dispatch import ForeignAttention, Keys, array_attention, keys_attended
from engine_core.device import Slot
from engine_core.ragged_attention import RaggedMask
from engine_core.ragged_step import FedChunk, FedToken, RaggedStep
from engine_core.ragged_views import RaggedView
from engine_core.slot_buffers import LayerBuffers
from engine_core.slot_layout import LayerLayout

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=4, key_dtype=mx.float32, value_dtype=mx.float32)
LENGTHS = (64, 256)


class Forward:
    """A layer with known contents in two pools, and a step: three decode rows, with a gap, and a chunk."""

    def __init__(self, window: int | None = None) -> None:
        mx.random.seed(3)
        self.pools = [LayerBuffers(LAYOUT, 6, LENGTHS[0]), LayerBuffers(LAYOUT, 2, LENGTHS[1])]
        for layer in self.pools:
            layer.keys, layer.values = mx.random.normal(layer.keys.shape), mx.random.normal(layer.values.shape)
        self.window = window
        self.step = RaggedStep(
            [FedChunk(Slot(0, 4), 9, 5)],
            [FedToken(Slot(0, 0), 30), FedToken(Slot(0, 3), 7), FedToken(Slot(1, 1), 200)],
            LENGTHS,
        )
        self.view = RaggedView(self.pools, window, self.step)
        self.places = [(0, 0, 30), (0, 3, 7), (1, 1, 200), *[(0, 4, position) for position in range(9, 14)]]
        self.queries, self.keys, self.values = (mx.random.normal((8, heads, 1, 4)) for heads in (6, 2, 2))

    def attention(self, mask: object, sinks: mx.array | None = None) -> np.ndarray:
        handles = self.view.update_and_fetch(self.keys, self.values)
        with keys_attended():
            return np.array(
                mx.fast.scaled_dot_product_attention(self.queries, *handles, scale=0.5, mask=mask, sinks=sinks)
            )

    def expected(self, window: int | None, sinks: mx.array | None = None) -> np.ndarray:
        """Token by token, over what the buffers hold after the write."""
        found = []
        for token, (pool, slot, position) in enumerate(self.places):
            first = 0 if window is None else max(0, position - window + 1)
            read = (slice(slot, slot + 1), slice(None), slice(first, position + 1))
            layer = self.pools[pool]
            own = self.queries[token : token + 1]
            found.append(array_attention(own, layer.keys[read], layer.values[read], scale=0.5, sinks=sinks))
        return np.array(mx.concatenate(found))


@pytest.mark.parametrize("layer_window", [None, 6])
@pytest.mark.parametrize("asked_window", [None, 4])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_each_token_attends_to_its_own_sequence(
    layer_window: int | None, asked_window: int | None, with_sinks: bool
) -> None:
    forward = Forward(layer_window)
    sinks = mx.array([0.1, -1.0, 2.0, 0.5, 0.0, 1.0]) if with_sinks else None
    found = forward.attention(forward.view.make_mask(1, window_size=asked_window), sinks)
    window = min((w for w in (layer_window, asked_window) if w), default=None)
    assert found == pytest.approx(forward.expected(window, sinks), abs=1e-5)


@pytest.mark.parametrize("window", [None, 6])
def test_no_mask_is_all_that_came_before(window: int | None) -> None:
    forward = Forward(window)
    assert forward.attention(None) == pytest.approx(forward.expected(window), abs=1e-5)


def test_each_token_is_written_at_its_place_and_nowhere_else() -> None:
    forward = Forward()
    before = [np.array(layer.keys) for layer in forward.pools]
    forward.view.update_and_fetch(forward.keys, forward.values)
    after = [np.array(layer.keys) for layer in forward.pools]
    for token, (pool, slot, position) in enumerate(forward.places):
        assert (after[pool][slot, :, position] == np.array(forward.keys)[token, :, 0]).all()
        after[pool][slot, :, position] = before[pool][slot, :, position]
    assert all((a == b).all() for a, b in zip(after, before, strict=True))
    assert forward.view.offset.tolist() == [place[2] + 1 for place in forward.places]


def test_keys_and_values_are_what_was_fetched() -> None:
    forward = Forward()
    with pytest.raises(ForeignAttention, match="before they are written"):
        forward.view.keys_and_values()
    fetched = forward.view.update_and_fetch(forward.keys, forward.values)
    assert forward.view.keys_and_values() == fetched


def test_what_does_not_belong_to_the_forward_is_refused() -> None:
    forward, other = Forward(), Forward()
    keys, values = forward.view.update_and_fetch(forward.keys, forward.values)
    _, foreign = other.view.update_and_fetch(other.keys, other.values)
    own = forward.view.make_mask(1)
    attempts = [
        (forward.queries, keys, foreign, own),
        (forward.queries, keys, forward.values, own),
        (forward.queries, keys, values, other.view.make_mask(1)),
        (forward.queries, keys, values, mx.ones((8, 1, 1, 1))),
        (forward.queries, keys, values, "causal"),
        (forward.queries[:4], keys, values, own),
        (mx.zeros((1, 6, 8, 4)), keys, values, own),
    ]
    with keys_attended():
        for queries, some_keys, some_values, mask in attempts:
            with pytest.raises(ForeignAttention):
                mx.fast.scaled_dot_product_attention(queries, some_keys, some_values, scale=0.5, mask=mask)
    for shape in ((7, 2, 1, 4), (8, 2, 2, 4)):
        with pytest.raises(ForeignAttention):
            Forward().view.update_and_fetch(mx.zeros(shape), mx.zeros(shape))
    with pytest.raises(ForeignAttention):
        forward.view.update_and_fetch(forward.keys, forward.values)
    with pytest.raises(ForeignAttention):
        forward.view.make_mask(2)


def test_a_layer_that_is_written_and_not_attended_to_is_found() -> None:
    forward = Forward()
    forward.view.check_attended()
    forward.view.update_and_fetch(forward.keys, forward.values)
    with pytest.raises(ForeignAttention, match="by the model itself"):
        forward.view.check_attended()
    attended = Forward()
    attended.attention(None)
    attended.view.check_attended()


def test_attention_over_arrays_is_left_as_it_is() -> None:
    plain = mx.fast.scaled_dot_product_attention
    queries, keys = mx.random.normal((1, 4, 3, 8)), mx.random.normal((1, 2, 5, 8))
    expected = plain(queries, keys, keys, scale=0.3, mask="causal")
    with keys_attended():
        found = mx.fast.scaled_dot_product_attention(queries, keys, keys, scale=0.3, mask="causal")
        assert mx.fast.scaled_dot_product_attention is not plain
    assert mx.array_equal(found, expected)
    assert mx.fast.scaled_dot_product_attention is plain is array_attention
    with pytest.raises(TypeError):
        plain(queries, Keys(mx.float32), keys, scale=0.3)


def test_a_mask_has_the_narrower_window() -> None:
    forward = Forward(window=8)
    windows = [forward.view.make_mask(1, window_size=size).window for size in (None, 3, 99)]
    assert windows == [8, 3, 8]
    assert isinstance(forward.view.make_mask(1, return_array=True), RaggedMask)


def test_values_may_have_no_dimension() -> None:
    layer = LayerBuffers(LayerLayout(2, 4, 0, mx.float32, mx.float32), 2, 64)
    view = RaggedView([layer], None, RaggedStep([], [FedToken(Slot(0, 1), 3)], [64]))
    view.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.zeros((1, 2, 1, 0)))
    mx.eval(layer.keys, layer.values)
    assert np.array(layer.keys)[1, 0, 3].tolist() == [1] * 4
