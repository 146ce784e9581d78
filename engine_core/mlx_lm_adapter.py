"""The only module that imports mlx-lm; written against 0.32.2 and good for >=0.32.2,<0.33.

Used of it, with why it may break with another version:
- utils.load_model(path, lazy): architecture by config.json, quantisation of all its forms. Models are called as
  model(ids [rows, n], cache=[...]) and give logits [rows, n, vocabulary].
- models.cache.make_prompt_cache, and the cache classes: their `keys`, `values` and `cache` hold the memory.
- models.cache.KVCache and ArraysCache as the protocol that slot_views speaks: offset, update_and_fetch,
  keys_and_values, make_mask(n, return_array, window_size), cache. Before 0.32 models read other attributes.
- models.cache.create_attention_mask(n, tokens before, return_array, window_size), which makes a KVCache's masks.

mlx-lm imports transformers, which imports torch where it finds it: 0.5 GB for nothing, because the engine core needs
no tokenizer. So torch is made invisible while mlx-lm is imported.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx.utils import tree_flatten

from engine_core.device import ModelRefused, OnProgress
from engine_core.device_memory import CacheCost
from engine_core.slot_layout import CacheLayout, LayerLayout, StateArray, StateLayout


@contextmanager
def invisible(package: str) -> Iterator[None]:
    """Lets `package` look as if it were not installed, unless it is loaded already.

    None in sys.modules is Python's own way to say so: import raises ModuleNotFoundError, find_spec finds nothing.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


with invisible("torch"):
    from mlx_lm.models.cache import (
        ArraysCache,
        CacheList,
        ChunkedKVCache,
        ConcatenateKVCache,
        KVCache,
        RotatingKVCache,
        create_attention_mask,
        make_prompt_cache,
    )
    from mlx_lm.utils import load_model, maybe_set_recommended_wired_limit

__all__ = [
    "ArraysCache",
    "CacheList",
    "KVCache",
    "ModelTrace",
    "RotatingKVCache",
    "cache_arrays",
    "create_attention_mask",
    "load_weights",
    "make_prompt_cache",
    "trace_model",
    "unfit_for_slots",
    "weight_bytes",
]

_CACHES_WITH_KEYS = (KVCache, RotatingKVCache, ChunkedKVCache, ConcatenateKVCache)
"""Classes whose `keys` are [1, heads, allocated tokens, dim], or None while they are empty."""

Cache = Sequence[Any]
"""A prompt cache of mlx-lm: one cache object a layer, or what the model's make_cache gives."""


def load_weights(folder: Path, on_progress: OnProgress) -> Any:
    """The model in `folder`, its weights in memory in the dtype they are stored in.

    `on_progress` gets the share of bytes loaded and the last weight's name. Raises ModelRefused for a folder that
    mlx-lm cannot serve. A model_file (Python code in the folder) is never run.
    """
    try:
        model, _ = load_model(folder, lazy=True)
        maybe_set_recommended_wired_limit()
        _evaluate_weights(model, on_progress)
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        raise ModelRefused(f"mlx-lm cannot load {folder}: {error}") from error
    except SystemExit as error:  # models.olmo, when a package that it needs is not installed; it has printed why
        raise ModelRefused(f"mlx-lm cannot load {folder}: it wants to end the process") from error
    return model


def _evaluate_weights(model: Any, on_progress: OnProgress) -> None:
    weights = tree_flatten(model.parameters())
    total_bytes = max(1, sum(weight.nbytes for _, weight in weights))
    loaded_bytes = 0
    for name, weight in weights:
        mx.eval(weight)
        loaded_bytes += weight.nbytes
        on_progress(loaded_bytes / total_bytes, name)


def weight_bytes(model: Any) -> int:
    """Memory of all parameters."""
    return sum(int(weight.nbytes) for _, weight in tree_flatten(model.parameters()))


class ModelTrace(msgspec.Struct, frozen=True):
    """What the shapes of a forward tell of a model; nothing is computed for it."""

    vocab_size: int
    """Token ids below it exist in the embedding and in the logits."""
    logits_dtype: mx.Dtype
    layouts: tuple[CacheLayout, ...] | None
    """Of the entries of its prompt cache, as slots hold them; None when they cannot (see `_layouts`)."""
    cache_kinds: tuple[str, ...]
    """Names of the cache classes in use, sorted."""
    cost: CacheCost


UNFIT_FOR_SLOTS = {
    "minimax_m3_vl": "it takes positions from the length of its keys, once they exceed index_topk_blocks blocks",
}
"""Modules of mlx-lm that pass the self test, because its sequences are short, and are wrong in slots nevertheless."""


def unfit_for_slots(model: Any) -> str | None:
    """Why slots must not be tried with this model, though its caches would fit; None if nothing is known against it."""
    return UNFIT_FOR_SLOTS.get(type(model).__module__.removeprefix("mlx_lm.models."))


def trace_model(model: Any) -> ModelTrace:
    """Feeds a few tokens without evaluating anything, and looks at the shapes."""
    cache = make_prompt_cache(model)
    logits = model(mx.zeros((1, 1), mx.int32), cache=cache)
    leaves = list(_leaves(cache))
    per_token = [_bytes_per_token(leaf) for leaf in leaves]
    per_row = [leaf.nbytes for leaf in leaves if isinstance(leaf, ArraysCache)]
    cost = CacheCost(sum(per_token), max(per_token, default=0), sum(per_row), max(per_row, default=0))
    first = _layouts(cache)
    model(mx.zeros((1, 2), mx.int32), cache=cache)
    return ModelTrace(
        vocab_size=min([logits.shape[-1], *_embedding_rows(model)]),
        logits_dtype=logits.dtype,
        layouts=first if first == _layouts(cache) else None,
        cache_kinds=tuple(sorted({type(leaf).__name__ for leaf in leaves})),
        cost=cost,
    )


def _leaves(cache: Cache) -> Iterator[Any]:
    for entry in cache:
        if isinstance(entry, CacheList):
            yield from _leaves(entry.caches)
        else:
            yield entry


def _bytes_per_token(leaf: Any) -> int:
    """Of a cache that was fed one token. An upper bound: a ring counts as if it never wrapped, and of a class that
    is not known here all that it holds counts for one token."""
    if isinstance(leaf, ArraysCache):
        return 0
    if not isinstance(leaf, _CACHES_WITH_KEYS):
        return int(leaf.nbytes)
    return 0 if leaf.empty() else int(leaf.nbytes // leaf.keys.shape[2])


def _layouts(cache: Cache) -> tuple[CacheLayout, ...] | None:
    """None where a class is not one of those that slots imitate."""
    layouts = []
    for entry in cache:
        layout = _layout(entry)
        if layout is None:
            return None
        layouts.append(layout)
    return tuple(layouts)


def _layout(entry: Any) -> CacheLayout | None:
    if type(entry) is CacheList:
        return _layouts(entry.caches)
    if type(entry) is ArraysCache:
        return StateLayout(tuple(None if a is None else StateArray(a.shape[1:], a.dtype) for a in entry.cache))
    if type(entry) is RotatingKVCache and entry.keep == 0:
        return _layer_layout(entry, entry.max_size)
    return _layer_layout(entry, None) if type(entry) is KVCache else None


def _layer_layout(cache: Any, window: int | None) -> LayerLayout:
    if cache.empty():
        return LayerLayout(0, 0, 0, mx.float32, mx.float32, window)
    return LayerLayout(
        heads=cache.keys.shape[1],
        key_dim=cache.keys.shape[3],
        value_dim=cache.values.shape[3],
        key_dtype=cache.keys.dtype,
        value_dtype=cache.values.dtype,
        window=window,
    )


def _embedding_rows(model: Any) -> list[int]:
    """[rows of the largest embedding], which is that of the tokens; [] for a model without one."""
    tables = [module for _, module in model.named_modules() if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)]
    return [max(table.weight.shape[0] for table in tables)] if tables else []


def cache_arrays(cache: Cache) -> list[mx.array]:
    """All arrays that a prompt cache holds."""
    return [array for leaf in _leaves(cache) for _, array in tree_flatten(leaf.state) if isinstance(array, mx.array)]
