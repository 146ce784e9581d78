"""Loads xgrammar without torch and transformers, which it imports and does not need for what is used of it here.

xgrammar 0.2 names a few types of torch and transformers in signatures, `torch.int32` and `torch.tensor` in two
constants, and tests for tokenizers of transformers in a function that is not called. They are given to it for the
time of its import, when the real ones are not loaded: 72 MB instead of 579 MB, 0.7 s instead of 2.3 s (and on Linux
several gigabytes of CUDA less to install). Bitmasks are numpy arrays, which its functions take as well.

The one place that knows of xgrammar's module and version; see `docs/design.md` for how it is installed.
"""

import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

_TORCH_TYPES = ("Tensor", "LongTensor", "FloatTensor", "device", "dtype")
_TRANSFORMERS_TYPES = ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "LogitsProcessor")


class GrammarsMissing(Exception):
    """xgrammar, or what it needs, is not installed."""


def is_installed() -> bool:
    """Whether xgrammar and its native interface are there; imports nothing."""
    return all(importlib.util.find_spec(name) is not None for name in ("xgrammar", "tvm_ffi"))


@cache
def load_xgrammar() -> Any:
    """The module. Raises GrammarsMissing."""
    with _in_place_of({"torch": None}):
        try:
            import tvm_ffi  # noqa: F401  # it uses torch where that can be imported, and does without
        except ImportError as error:
            raise GrammarsMissing("this server has no grammar back end: apache-tvm-ffi is not installed") from error
    with _in_place_of(_modules()):
        try:
            import xgrammar
        except ImportError as error:
            raise GrammarsMissing(f"this server has no grammar back end: {error}") from error
    return xgrammar


@contextmanager
def _in_place_of(modules: Mapping[str, types.ModuleType | None]) -> Iterator[None]:
    """Lets these be imported instead of the real ones, where those are not loaded; None: as if not installed."""
    stand_ins = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(stand_ins)  # type: ignore[arg-type]  # None is what keeps a module from being imported
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _modules() -> dict[str, types.ModuleType | None]:
    torch, transformers = types.ModuleType("torch"), types.ModuleType("transformers")
    vars(torch).update({name: type(name, (), {}) for name in _TORCH_TYPES}, int32="int32", tensor=_no_tensor)
    vars(transformers).update({name: type(name, (), {}) for name in _TRANSFORMERS_TYPES})
    return {"torch": torch, "transformers": transformers}


def _no_tensor(*_: object, **__: object) -> None:
    """For a constant that only xgrammar's functions for torch use."""
