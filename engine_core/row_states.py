"""The states of recurrent and convolutional layers, by row: as large after one token as after a thousand.

They do not depend on where a row's keys and values are, so a row that moves to another slot leaves them alone.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.slot_buffers import copied
from engine_core.slot_layout import CacheLayout, StateLayout, flat_layouts


class StateBuffers:
    """The state of one layer, all rows: one array [rows, ...] for each array of its state."""

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

    def read(self, rows: "Rows", at_start: bool = False) -> list[mx.array | None]:
        """The state of these rows, for a forward that is being traced; none at all at the start of a sequence."""
        return [None if array is None or at_start else rows.of(array) for array in self.arrays]

    def store(self, rows: "Rows", states: Sequence[mx.array | None]) -> None:
        """The state of these rows after a forward, not evaluated.

        A state that covers all rows takes the buffer's place. Others are written into it: in place when all that reads
        it is done, else MLX copies it.
        """
        for index, (buffer, state) in enumerate(zip(self.arrays, states, strict=True)):
            if buffer is None or state is None:
                assert buffer is None and state is None, "a model's state has the arrays that it had when traced"
                continue
            state = state.astype(buffer.dtype)
            if rows.are_all(buffer):
                self.arrays[index] = mx.contiguous(state)  # and not as the end of a long chunk's array
            else:
                buffer[rows.indices] = state


class Rows:
    """Rows of a forward, in the order of its batch."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = list(rows)
        self.indices = mx.array(self._rows, mx.int32)

    def are_all(self, buffer: mx.array) -> bool:
        """Whether they are all rows of the buffer, in order."""
        return self._rows == list(range(buffer.shape[0]))

    def of(self, buffer: mx.array) -> mx.array:
        """What they have in a buffer: a copy, unless they are all."""
        return buffer if self.are_all(buffer) else mx.take(buffer, self.indices, axis=0)


class RowStates:
    """Owner of the states of all layers that have one."""

    def __init__(self, layouts: Sequence[CacheLayout], max_rows: int) -> None:
        self._layouts = [layout for layout in flat_layouts(layouts) if isinstance(layout, StateLayout)]
        self._max_rows = max_rows
        self._rows = 0
        self.layers: list[StateBuffers] = []
        """In the order of the layouts, nesting left out, while there are rows."""

    @property
    def exist(self) -> bool:
        """Whether the model has any."""
        return bool(self._layouts)

    def reserve(self, rows: int) -> None:
        """Room for rows 0 .. rows-1; doubled, so that requests that arrive one by one do not copy each time. 0 frees
        all."""
        if rows == 0:
            self.layers, self._rows = [], 0
        elif rows > self._rows and self._layouts:
            self._rows = max(rows, min(2 * self._rows, self._max_rows))
            if self.layers:
                for layer in self.layers:
                    layer.resize(self._rows)
            else:
                self.layers = [StateBuffers(layout, self._rows) for layout in self._layouts]
                mx.eval(self.arrays())
            mx.clear_cache()

    def snapshot(self, row: int) -> list[mx.array]:
        """[1, ...] of each array of the row, to be owned by the caller; not evaluated."""
        return [mx.take(array, mx.array([row]), axis=0) for array in self.arrays()]

    def write(self, row: int, snapshot: Sequence[mx.array]) -> None:
        """The row gets the states of a snapshot; evaluated, so that nothing that was read of them is in the way."""
        for array, state in zip(self.arrays(), snapshot, strict=True):
            array[row : row + 1] = state
        mx.eval(self.arrays())

    def arrays(self) -> list[mx.array]:
        """All buffers. Never to be kept."""
        return [array for layer in self.layers for array in layer.arrays if array is not None]

    def check_invariants(self) -> None:
        """Asserts that all buffers have the stated rows."""
        assert len(self.layers) == (len(self._layouts) if self._rows else 0)
        assert all(array.shape[0] == self._rows for array in self.arrays())
