"""The memory of the slot runner: buffers with a row for each sequence, and nothing else.

A layer with attention has two, [rows, heads, length + 1, dim]; the one position more than asked takes the write of a
row that is full and runs only as a dummy. A recurrent layer has one [rows, ...] for each array of its state.

MLX writes into a buffer in place only while nobody else refers to it: a slice that is kept alive turns each write
into a copy of the whole buffer (24 ms and 50 MB instead of 0.05 ms for one of 50 MB). So no slice of a buffer is
ever stored; a forward's views (slot_views) live as long as the forward is traced.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.slot_layout import CacheLayout, LayerLayout, StateLayout, flat_layouts
from engine_core.slot_shape import SlotShape


class LayerBuffers:
    """Keys and values of one layer; views write into them in place."""

    def __init__(self, layout: LayerLayout, shape: SlotShape) -> None:
        positions = shape.length + 1
        self.window = layout.window
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
    kept = old[:rows, :, :positions]
    if kept.shape == shape:
        return copied(kept)
    new = mx.zeros(shape, old.dtype)
    if new.size:
        new[:rows, :, :positions] = kept
    return new


def copied(part: mx.array) -> mx.array:
    """The same in memory of its own.

    MLX does without copying where it can: an array that is written with one slice as large as itself is that slice
    then, and so is a stack of one. It would keep the whole buffer that it is a slice of, and make the next write to
    it a copy of all that.
    """
    return (part * 1).astype(part.dtype)


class StateBuffers:
    """The state of one recurrent layer, all rows."""

    def __init__(self, layout: StateLayout, rows: int) -> None:
        self.arrays = [None if a is None else mx.zeros((rows, *a.shape), a.dtype) for a in layout.arrays]

    def resize(self, rows: int) -> None:
        """Keeps the rows that fit; old and new exist together for one array at a time."""
        for index, old in enumerate(self.arrays):
            if old is not None and old.shape[0] != rows:
                if rows < old.shape[0]:
                    new = copied(old[:rows])
                else:
                    new = mx.zeros((rows, *old.shape[1:]), old.dtype)
                    new[: old.shape[0]] = old
                mx.eval(new)
                self.arrays[index] = new

    def read(self, rows: slice, start: int | None = None) -> list[mx.array | None]:
        """The state of these rows, for a forward that is being traced; none at all at the start of a sequence, 0."""
        return [None if array is None or start == 0 else array[rows] for array in self.arrays]

    def store(self, rows: slice, states: Sequence[mx.array | None], changed: mx.array | None = None) -> None:
        """The state of these rows after a forward, not evaluated; with `changed`, bool [rows], of those alone.

        A state that covers all rows takes the buffer's place: written into it, it would have to wait for its readers.
        """
        for index, (buffer, state) in enumerate(zip(self.arrays, states, strict=True)):
            if buffer is None or state is None:
                assert buffer is None and state is None, "a model's state has the arrays that it had when traced"
                continue
            if changed is not None:
                state = mx.where(changed.reshape(-1, *[1] * (state.ndim - 1)), state, buffer[rows])
            if state.shape == buffer.shape:
                self.arrays[index] = mx.contiguous(state.astype(buffer.dtype))  # not as the end of a long chunk's array
            else:
                buffer[rows] = state


class SlotBuffers:
    """Owner of all buffers; empty until the first `resize`."""

    def __init__(self, layouts: Sequence[CacheLayout]) -> None:
        flat = list(flat_layouts(layouts))
        self._layer_layouts = [layout for layout in flat if isinstance(layout, LayerLayout)]
        self._state_layouts = [layout for layout in flat if isinstance(layout, StateLayout)]
        self.shape = SlotShape()
        self.layers: list[LayerBuffers] = []
        """In the order of the layouts, nesting left out; so are the states."""
        self.states: list[StateBuffers] = []

    def resize(self, shape: SlotShape) -> None:
        """Gives all buffers this shape, layer by layer; an empty shape frees them."""
        if shape == self.shape:
            return
        if shape.tokens == 0:
            self.layers, self.states = [], []
        elif self.shape.tokens == 0:
            self.layers = [LayerBuffers(layout, shape) for layout in self._layer_layouts]
            self.states = [StateBuffers(layout, shape.rows) for layout in self._state_layouts]
            mx.eval(self.arrays())
        else:
            for layer, layout in zip(self.layers, self._layer_layouts, strict=True):
                layer.resize(layout, shape)
            for state in self.states:
                state.resize(shape.rows)
        self.shape = shape
        mx.clear_cache()  # buffers of the old shape will not be asked for again

    def arrays(self) -> list[mx.array]:
        """All buffers. For evaluation at once: who keeps one of these makes each later write a copy."""
        return self.planes() + self.state_arrays()

    def planes(self) -> list[mx.array]:
        """Keys and values of all layers, but for those of no size. The same care as with `arrays`."""
        return [array for layer in self.layers for array in (layer.keys, layer.values) if array.size]

    def state_arrays(self) -> list[mx.array]:
        """The buffers of recurrent layers."""
        return [array for state in self.states for array in state.arrays if array is not None]

    def check_invariants(self) -> None:
        """Asserts that all buffers have the stated shape."""
        assert len(self.layers) == (len(self._layer_layouts) if self.shape.tokens else 0)
        assert len(self.states) == (len(self._state_layouts) if self.shape.tokens else 0)
        for layer in self.layers:
            for array in (layer.keys, layer.values):
                assert (array.shape[0], array.shape[2]) == (self.shape.rows, self.shape.length + 1)
        assert all(array.shape[0] == self.shape.rows for array in self.state_arrays())
