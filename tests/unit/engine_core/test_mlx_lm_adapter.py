import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import CONFIGS, VOCAB, tiny_model, write_json, write_model_folder

from engine_core.device import ModelRefused
from engine_core.mlx_lm_adapter import (
    ArraysCache,
    CacheList,
    KVCache,
    cache_arrays,
    invisible,
    load_weights,
    make_prompt_cache,
    trace_model,
    weight_bytes,
)
from engine_core.slot_layout import LayerLayout, StateArray, StateLayout, flat_layouts


def test_an_installed_torch_is_not_loaded_but_can_be_later(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.9.0'\nprint('torch was imported')\n")
    code = "import engine_core.mlx_lm_adapter; print('adapter is there'); import torch"
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["adapter is there", "torch was imported"]


def test_an_invisible_package_cannot_be_found_unless_it_is_loaded() -> None:
    name = "this"
    assert name not in sys.modules
    with invisible(name), pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert name not in sys.modules and importlib.util.find_spec(name) is not None
    with invisible("json"):
        assert importlib.import_module("json") is json


def test_a_trace_tells_shapes_and_computes_nothing() -> None:
    model = tiny_model("qwen3")
    model.set_dtype(mx.float16)  # lazily: the weights exist only once something is computed
    active = mx.get_active_memory()
    trace = trace_model(model)
    assert mx.get_active_memory() == active
    assert trace.vocab_size == VOCAB
    assert trace.logits_dtype == mx.float16
    assert trace.layouts is not None and len(trace.layouts) == 3
    assert trace.layouts[0].bytes_per_token == 2 * (2 * 8) * 2
    assert trace.cost.bytes_per_token == 3 * trace.cost.largest_layer_bytes_per_token == 3 * 64
    assert trace.cost.bytes_per_row == 0


def test_a_recurrent_model_costs_by_the_row() -> None:
    trace = trace_model(tiny_model("mamba"))
    state = StateLayout((StateArray((3, 64), mx.float32), StateArray((64, 4), mx.float32)))
    assert trace.layouts == (state, state)
    assert trace.cache_kinds == ("ArraysCache",)
    assert trace.cost.bytes_per_token == 0
    assert trace.cost.bytes_per_row == 2 * (64 * 3 + 64 * 4) * 4, "two layers of convolution and state, float32"
    assert trace.cost.largest_layer_bytes_per_row == trace.cost.bytes_per_row / 2 == state.bytes_per_row


def test_windows_are_found_and_counted_by_the_token() -> None:
    trace = trace_model(tiny_model("gemma3_text"))
    assert trace.layouts is not None
    assert [layout.window for layout in trace.layouts if isinstance(layout, LayerLayout)] == [8, None, 8]
    assert trace.cache_kinds == ("KVCache", "RotatingKVCache")
    assert trace.cost.bytes_per_token == 3 * 2 * 8 * 2 * 4


class _FakeModel:
    """Writes what it is told to write into a cache of its own making."""

    def __init__(self, make_cache: Callable[[], list[Any]], write: Callable[[list[Any], int], None]) -> None:
        self.make_cache = make_cache
        self._write = write

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self._write(cache, inputs.shape[1])
        return mx.zeros((*inputs.shape, VOCAB))

    def named_modules(self) -> list[tuple[str, Any]]:
        return []


def _write_keys(cache: Any, n: int) -> None:
    cache.update_and_fetch(mx.zeros((1, 2, n, 4)), mx.zeros((1, 2, n, 3)))


def test_nested_caches_are_found_with_their_nesting() -> None:
    def write(cache: list[Any], n: int) -> None:
        cache[0][0][1] = mx.zeros((1, 5))
        _write_keys(cache[0][1], n)

    trace = trace_model(_FakeModel(lambda: [CacheList(ArraysCache(2), KVCache())], write))
    layer = LayerLayout(2, 4, 3, mx.float32, mx.float32)
    assert trace.layouts == ((StateLayout((None, StateArray((5,), mx.float32))), layer),)
    assert list(flat_layouts(trace.layouts)) == list(trace.layouts[0])


def test_a_state_that_grows_with_the_tokens_does_not_fit_slots() -> None:
    def write(cache: list[Any], n: int) -> None:
        cache[0][0] = mx.zeros((1, n, 5))

    assert trace_model(_FakeModel(lambda: [ArraysCache(1)], write)).layouts is None


def test_a_layer_that_writes_nothing_needs_no_memory() -> None:
    trace = trace_model(_FakeModel(lambda: [KVCache(), KVCache()], lambda cache, n: _write_keys(cache[0], n)))
    assert trace.layouts is not None and len(trace.layouts) == 2
    assert [layout.bytes_per_token for layout in flat_layouts(trace.layouts) if isinstance(layout, LayerLayout)] == [
        56,
        0,
    ]


def test_ids_must_exist_in_the_embedding_as_in_the_logits() -> None:
    model = tiny_model("qwen2")
    model.model.embed_tokens.weight = model.model.embed_tokens.weight[:90]
    assert trace_model(model).vocab_size == 90


@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_all_arrays_of_a_cache_are_found(model_type: str) -> None:
    model = tiny_model(model_type)
    cache = make_prompt_cache(model)
    model(mx.array([[1, 2, 3]]), cache=cache)
    arrays = cache_arrays(cache)
    assert sum(array.nbytes for array in arrays) == sum(layer.nbytes for layer in cache)


def test_weights_load_with_progress(tmp_path: Path) -> None:
    seen: list[tuple[float, str]] = []
    model = load_weights(write_model_folder(tmp_path / "m"), lambda share, name: seen.append((share, name)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) > 10
    assert "model.embed_tokens.weight" in {name for _, name in seen}
    original = tiny_model("llama")
    assert weight_bytes(model) == weight_bytes(original)
    assert mx.array_equal(model(mx.array([[1, 2]])), original(mx.array([[1, 2]])))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "no_such_architecture"}, "no_such_architecture"),
        ({"model_type": "llama"}, "hidden_size"),
        ({"model_type": "llama", **CONFIGS["llama"], "num_hidden_layers": 7}, "parameters"),
        ({"model_type": "llama", **CONFIGS["llama"], "model_file": "evil.py"}, "trust"),
        ({}, "model_type"),
    ],
)
def test_what_mlx_lm_cannot_load_is_a_clear_error(tmp_path: Path, config: dict[str, object], message: str) -> None:
    folder = write_model_folder(tmp_path / "m")
    write_json(folder / "config.json", config)
    with pytest.raises(ModelRefused, match=message):
        load_weights(folder, lambda _share, _name: None)


def test_a_cut_off_weight_file_is_a_clear_error(tmp_path: Path) -> None:
    weights = write_model_folder(tmp_path / "m") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])
    with pytest.raises(ModelRefused, match="cannot load"):
        load_weights(weights.parent, lambda _share, _name: None)
