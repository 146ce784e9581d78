"""What a model caches, entry by entry: found when it is loaded (mlx_lm_adapter), and what slot buffers are made of."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import mlx.core as mx
import msgspec


class LayerLayout(msgspec.Struct, frozen=True):
    """Keys and values of one layer, which grow by the token."""

    heads: int
    """Of keys and values alike, as in mlx-lm's KVCache; 0 for a layer that writes neither."""
    key_dim: int
    value_dim: int
    key_dtype: mx.Dtype
    value_dtype: mx.Dtype
    window: int | None = None
    """The layer attends to so many tokens, the last of which is the one fed; None: to all.

    A row keeps all tokens nevertheless. A ring of `window` tokens would save memory, but whoever wants to copy a
    part of a row out or in (a prefix) would find it overwritten, and each chunk of prefill would have to leave room
    in the ring for itself; the mask is as right and needs neither.
    """

    @property
    def bytes_per_token(self) -> int:
        """Keys and values together."""
        return self.heads * (self.key_dim * self.key_dtype.size + self.value_dim * self.value_dtype.size)


class StateArray(msgspec.Struct, frozen=True):
    """One array of a recurrent layer."""

    shape: tuple[int, ...]
    """Of one row, without the row's axis, which is the first."""
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape) * self.dtype.size


class StateLayout(msgspec.Struct, frozen=True):
    """State of a recurrent or convolutional layer: as large after one token as after a thousand."""

    arrays: tuple[StateArray | None, ...]
    """In the order of mlx-lm's ArraysCache; None for a place that the model leaves empty."""

    @property
    def bytes_per_row(self) -> int:
        """All arrays together."""
        return sum(array.nbytes for array in self.arrays if array is not None)


CacheLayout: TypeAlias = LayerLayout | StateLayout | tuple["CacheLayout", ...]
"""Of one entry of a model's prompt cache; a tuple is a CacheList."""


def flat_layouts(layouts: Sequence[CacheLayout]) -> Iterator[LayerLayout | StateLayout]:
    """The layouts without their nesting."""
    for layout in layouts:
        if isinstance(layout, tuple):
            yield from flat_layouts(layout)
        else:
            yield layout


def shortest_window(layouts: Sequence[CacheLayout]) -> int | None:
    """Of the layers that have one."""
    flat = flat_layouts(layouts)
    return min((w for layout in flat if isinstance(layout, LayerLayout) and (w := layout.window)), default=None)
