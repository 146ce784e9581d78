"""Attention over keys that are not one array: the one place where a function of MLX is replaced.

A forward whose batch rows are single tokens of many sequences (ragged_views) has no array of keys that all of them
attend to. Its cache views hand the model an object, `Keys`, where mlx-lm's caches hand it an array. The model passes
it on to mlx-lm's scaled_dot_product_attention (models/base.py of 0.32.2), which looks whether the cache has `bits`, as
quantised ones do, and else calls mx.fast.scaled_dot_product_attention by that name, as do the few models that call it
themselves. So that name leads here while such a forward is traced. Whoever did anything else with the keys, the values
or the mask has raised before: they are no arrays. mlx-lm itself is left as it is.

What a call means is told by the keys that it gets, not by the cache: layers that share keys pass another layer's
cache, or none.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

array_attention = mx.fast.scaled_dot_product_attention
"""MLX's own: queries [B, Hq, n, D], keys and values [B, H, m, D]."""


class Values:
    """Stands for the values that belong to some `Keys`."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        """phi gives its output that of the values."""


class Keys(ABC):
    """Stands for the keys of one layer."""

    def __init__(self, values_dtype: mx.Dtype) -> None:
        self.values = Values(values_dtype)

    @abstractmethod
    def attend(self, queries: mx.array, mask: Any, scale: float, sinks: mx.array | None) -> mx.array:
        """The output, in the shape of the queries; `mask` is whatever the model has for one."""


class ForeignAttention(ValueError):
    """A model calls attention with something that does not go with the keys."""


@contextmanager
def keys_attended() -> Iterator[None]:
    """Within, attention takes `Keys`. For one thread at a time: the one that runs the model."""
    mx.fast.scaled_dot_product_attention = _attention  # type: ignore[assignment]  # the options that mlx-lm uses
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = array_attention


def _attention(
    q: mx.array, k: Any, v: Any, *, scale: float, mask: Any = None, sinks: mx.array | None = None
) -> mx.array:
    if isinstance(k, Keys):
        if v is not k.values:
            raise ForeignAttention("attention with the values of another layer")
        return k.attend(q, mask, scale, sinks)
    return array_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
