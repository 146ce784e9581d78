"""The KV memory of the slot runner: two buffers a layer, [rows, heads, length + 1, dim], and nothing else.

MLX writes into a buffer in place only while nobody else refers to it: a slice that is kept alive turns each write
into a copy of the whole buffer (24 ms and 50 MB instead of 0.05 ms for one of 50 MB). So no slice of a buffer is
ever stored; a forward's views (slot_views) live as long as the forward is traced.

The one position more than asked takes the write of a row that is full and runs only as a dummy.
"""

from collections.abc import Sequence

import mlx.core as mx
import msgspec

from engine_core.slot_shape import SlotShape


class LayerLayout(msgspec.Struct, frozen=True):
    """What one layer caches per token."""

    heads: int
    """Of keys and values alike, as in mlx-lm's KVCache."""
    key_dim: int
    value_dim: int
    key_dtype: mx.Dtype
    value_dtype: mx.Dtype

    @property
    def bytes_per_token(self) -> int:
        """Keys and values together."""
        return self.heads * (self.key_dim * self.key_dtype.size + self.value_dim * self.value_dtype.size)


class LayerBuffers:
    """Keys and values of one layer; views write into them in place."""

    def __init__(self, layout: LayerLayout, shape: SlotShape) -> None:
        positions = shape.length + 1
        self.keys = mx.zeros((shape.rows, layout.heads, positions, layout.key_dim), layout.key_dtype)
        self.values = mx.zeros((shape.rows, layout.heads, positions, layout.value_dim), layout.value_dtype)

    def resize(self, layout: LayerLayout, shape: SlotShape) -> None:
        """Copies what fits into buffers of another shape; old and new exist together for one buffer at a time."""
        positions = shape.length + 1
        self.keys = _resized(self.keys, (shape.rows, layout.heads, positions, layout.key_dim))
        mx.eval(self.keys)
        self.values = _resized(self.values, (shape.rows, layout.heads, positions, layout.value_dim))
        mx.eval(self.values)


def _resized(old: mx.array, shape: tuple[int, int, int, int]) -> mx.array:
    rows, positions = min(old.shape[0], shape[0]), min(old.shape[2], shape[2])
    new = mx.zeros(shape, old.dtype)
    new[:rows, :, :positions] = old[:rows, :, :positions]
    return new


class SlotBuffers:
    """Owner of all layers' buffers; empty until the first `resize`."""

    def __init__(self, layouts: Sequence[LayerLayout]) -> None:
        self._layouts = tuple(layouts)
        self.shape = SlotShape()
        self.layers: list[LayerBuffers] = []

    def resize(self, shape: SlotShape) -> None:
        """Gives all buffers this shape, layer by layer; an empty shape frees them."""
        if shape == self.shape:
            return
        if shape.tokens == 0:
            self.layers = []
        elif not self.layers:
            self.layers = [LayerBuffers(layout, shape) for layout in self._layouts]
            mx.eval(self.arrays())
        else:
            for layer, layout in zip(self.layers, self._layouts, strict=True):
                layer.resize(layout, shape)
        self.shape = shape
        mx.clear_cache()  # buffers of the old shape will not be asked for again

    def arrays(self) -> list[mx.array]:
        """All buffers. For evaluation at once: who keeps one of these makes each later write a copy."""
        return [array for layer in self.layers for array in (layer.keys, layer.values)]

    def check_invariants(self) -> None:
        """Asserts that all buffers have the stated shape."""
        assert len(self.layers) == (len(self._layouts) if self.shape.tokens else 0)
        for array in self.arrays():
            assert (array.shape[0], array.shape[2]) == (self.shape.rows, self.shape.length + 1)
