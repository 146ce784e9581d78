"""What a model sees of the slot buffers during one forward: mlx-lm's cache protocol, over rows of shared buffers.

A view lives for one forward. Models ask it for `offset` (the position of the next token fed), `update_and_fetch`
(write new keys and values, get all that are to be attended), `keys_and_values` (the same again, for layers that
share them) and `make_mask`. A recurrent layer reads and assigns the arrays of its state.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from engine_core.mlx_lm_adapter import ArraysCache, CacheList, KVCache, create_attention_mask
from engine_core.slot_buffers import LayerBuffers
from engine_core.slot_layout import CacheLayout, LayerLayout

READ_STEP = 64
"""Attention reads a multiple of so many positions: shapes, and with them the allocator's buffers, stay the same."""


class PrefillView(KVCache):  # type: ignore[misc]  # mlx-lm is untyped; models test isinstance(cache, KVCache)
    """One row; `n` tokens are fed from position `start` on. Keys and masks are those of mlx-lm's cache there."""

    def __init__(self, layer: LayerBuffers, row: int, start: int) -> None:
        self.keys = layer.keys
        self.values = layer.values
        self.offset = start
        self._row = slice(row, row + 1)
        self._window = layer.window
        self._first = 0 if layer.window is None else max(0, start - layer.window + 1)
        """Earliest position that one of the tokens fed attends to."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [1, heads, n, dim] in place; returns what is attended to, up to the last position written."""
        end = self.offset + keys.shape[2]
        positions = slice(self.offset, end)
        for buffer, new in ((self.keys, keys), (self.values, values)):
            if new.size:  # MLX divides by zero when it writes nothing (minimax_m3_vl has values of no dimension)
                buffer[self._row, :, positions] = new
        self.offset = end
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """See KVCache."""
        positions = slice(self._first, self.offset)
        return self.keys[self._row, :, positions], self.values[self._row, :, positions]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """See KVCache, and RotatingKVCache for a layer with a window."""
        before = self.offset - self._first
        window = _narrower(self._window, window_size)
        if window is not None and before + n <= window:
            window = None
        return create_attention_mask(n, before, return_array=return_array, window_size=window)


class DecodeStep:
    """What all layers of one decode forward share: rows `first_row` and on, each at its own position."""

    def __init__(self, first_row: int, positions: list[int], last_position: int, length: int) -> None:
        """`last_position` is the largest one whose result counts; `length` is what the buffers hold per row."""
        end_row = first_row + len(positions)
        self.rows = slice(first_row, end_row)
        self.row_indices = mx.arange(first_row, end_row)
        self.positions = mx.array(positions)
        self.read_length = min(-(-(last_position + 1) // READ_STEP) * READ_STEP, length)
        self._masks: dict[int | None, mx.array] = {}

    def mask(self, window: int | None) -> mx.array:
        """[rows, 1, 1, read_length], true where a row attends: its own tokens, the last `window` of them if given.

        Every row attends to something: a softmax over nothing is NaN, and a dummy row, which may lie beyond what is
        read, writes what it computes into its buffer, where not even a mask keeps a NaN from the row's next owner.
        """
        if window not in self._masks:
            positions = mx.minimum(self.positions, self.read_length - 1)[:, None, None, None]
            keys = mx.arange(self.read_length)
            mask = keys <= positions
            self._masks[window] = mask if window is None else mask & (keys > positions - window)
        return self._masks[window]


class DecodeView(KVCache):  # type: ignore[misc]
    """Several rows; one token is fed to each."""

    def __init__(self, layer: LayerBuffers, step: DecodeStep) -> None:
        self.keys = layer.keys
        self.values = layer.values
        self.offset = step.positions
        self._window = layer.window
        self._step = step

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [rows, heads, 1, dim] in place, each row at its position; returns the rows' first `read_length`."""
        step = self._step
        for buffer, new in ((self.keys, keys), (self.values, values)):
            if new.size:
                buffer[step.row_indices, :, step.positions] = new[:, :, 0]
        self.offset = step.positions + 1
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """See KVCache; of all positions up to the longest row's."""
        step = self._step
        return self.keys[step.rows, :, : step.read_length], self.values[step.rows, :, : step.read_length]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Always an array: rows have different lengths. Raises ValueError for more than one token a row."""
        if n != 1:
            raise ValueError(f"a decode row takes 1 token, not {n}")
        return self._step.mask(_narrower(self._window, window_size))


def _narrower(window: int | None, other: int | None) -> int | None:
    return min((w for w in (window, other) if w is not None), default=None)


class StateView(ArraysCache):  # type: ignore[misc]  # mamba tests isinstance(cache, ArraysCache)
    """State of one or several rows; the model assigns the new one. No masks: every row is fed as many tokens."""

    def __init__(self, states: Sequence[mx.array | None]) -> None:
        super().__init__(len(states))
        self.cache = list(states)


def nested(layouts: Sequence[CacheLayout], layers: Iterator[KVCache], states: Iterator[StateView]) -> list[Any]:
    """The views as the model's prompt cache has them: one entry for each layout, a CacheList where it is nested."""
    return [_nested(layout, layers, states) for layout in layouts]


def _nested(layout: CacheLayout, layers: Iterator[KVCache], states: Iterator[StateView]) -> Any:
    if isinstance(layout, tuple):
        return CacheList(*nested(layout, layers, states))
    return next(layers) if isinstance(layout, LayerLayout) else next(states)
