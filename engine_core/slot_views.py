"""What a model sees of the slot buffers during one forward: mlx-lm's KVCache protocol, over rows of shared buffers.

A view lives for one forward. Models ask it for `offset` (the position of the first token fed), `update_and_fetch`
(write new keys and values, get all that are to be attended) and `make_mask`.
"""

import mlx.core as mx

from engine_core.mlx_lm_adapter import KVCache
from engine_core.slot_buffers import LayerBuffers

READ_STEP = 64
"""Attention reads a multiple of so many positions: shapes, and with them the allocator's buffers, stay the same."""


class PrefillView(KVCache):  # type: ignore[misc]  # mlx-lm is untyped; models test isinstance(cache, KVCache)
    """One row; `n` tokens are fed from position `start` on. Masks are those of a KVCache at this offset."""

    def __init__(self, layer: LayerBuffers, row: int, start: int) -> None:
        self.keys = layer.keys
        self.values = layer.values
        self.offset = start
        self._row = row

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [1, heads, n, dim] in place; returns the row up to the last position written."""
        end = self.offset + keys.shape[2]
        row = slice(self._row, self._row + 1)
        self.keys[row, :, self.offset : end] = keys
        self.values[row, :, self.offset : end] = values
        return self.keys[row, :, :end], self.values[row, :, :end]


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
        """[rows, 1, 1, read_length], true where a row attends: its own tokens, the last `window` of them if given."""
        if window not in self._masks:
            positions = self.positions[:, None, None, None]
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
        self._step = step

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [rows, heads, 1, dim] in place, each row at its position; returns the rows' first `read_length`."""
        step = self._step
        self.keys[step.row_indices, :, step.positions] = keys[:, :, 0]
        self.values[step.row_indices, :, step.positions] = values[:, :, 0]
        return self.keys[step.rows, :, : step.read_length], self.values[step.rows, :, : step.read_length]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Always an array: rows have different lengths. Raises ValueError for more than one token a row."""
        if n != 1:
            raise ValueError(f"a decode row takes 1 token, not {n}")
        return self._step.mask(window_size)
