from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from tiny_models import VOCAB, tiny_model

from engine_core.device import DecodeRow
from engine_core.mlx_lm_adapter import trace_model
from engine_core.row_runner import RowRunner
from engine_core.self_test import find_fault, window_to_fill
from engine_core.slot_buffers import StateBuffers
from engine_core.slot_layout import LayerLayout
from engine_core.slot_runner import SlotRunner


def slots(model: Any) -> SlotRunner:
    layouts = trace_model(model).layouts
    assert layouts is not None
    return SlotRunner(model, layouts, 10_000, 8)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text", "mamba"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_models_that_fit_slots_pass(model_type: str, dtype: mx.Dtype) -> None:
    model = tiny_model(model_type)
    model.set_dtype(dtype)
    assert find_fault(model, slots(model), VOCAB, trace_model(model).logits_dtype) is None


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba"])
def test_the_row_runner_passes_with_any_model(model_type: str) -> None:
    model = tiny_model(model_type)
    assert find_fault(model, RowRunner(model), VOCAB, mx.float32) is None


def test_a_model_that_takes_positions_from_the_length_of_the_keys_is_found() -> None:
    model = tiny_model("afm7")
    assert "logits differ" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_model_that_refuses_slot_caches_is_found() -> None:
    model = tiny_model("gpt_bigcode")
    assert "does not accept slot caches" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_model_that_is_silently_wrong_in_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for no mask when one token is fed: right for one sequence, wrong for rows of different lengths."""
    monkeypatch.setattr("mlx_lm.models.llama.create_attention_mask", lambda h, _: "causal" if h.shape[1] > 1 else None)
    model = tiny_model("llama")
    assert "logits differ" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_window_that_is_not_kept_is_found_once_a_sequence_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_core.slot_views._narrower", lambda *_windows: None)
    model = tiny_model("gemma3_text", sliding_window=64)
    assert find_fault(model, slots(model), VOCAB, mx.float32) is None
    assert "logits differ" in str(find_fault(model, slots(model), VOCAB, mx.float32, filling=64))


def test_a_state_that_idle_rows_do_not_keep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateBuffers.store
    monkeypatch.setattr(StateBuffers, "store", lambda buffers, rows, states, changed=None: store(buffers, rows, states))
    model = tiny_model("mamba")
    assert "logits differ" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_window_is_filled_where_it_is_short_and_fits() -> None:
    layer = LayerLayout(1, 4, 4, mx.float32, mx.float32)
    layouts = [layer, (msgspec.structs.replace(layer, window=512), msgspec.structs.replace(layer, window=900))]
    assert window_to_fill(layouts, 10_000) == 512
    assert window_to_fill(layouts, 3 * 768) == 512
    assert window_to_fill(layouts, 3 * 768 - 1) == 0
    assert window_to_fill([msgspec.structs.replace(layer, window=4096)], 1_000_000) == 0
    assert window_to_fill([layer], 10_000) == 0


class _OffInOneRow(SlotRunner):
    def decode(self, decodes: Sequence[DecodeRow]) -> mx.array:
        logits = super().decode(decodes)
        return logits + (mx.arange(len(decodes))[:, None] == 1) * self.error

    error = 0.0


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_a_small_error_in_one_row_is_found(error: float) -> None:
    model = tiny_model("llama")
    layouts = trace_model(model).layouts
    assert layouts is not None
    runner = _OffInOneRow(model, layouts, 10_000, 8)
    assert find_fault(model, runner, VOCAB, mx.float32) is None
    runner.error = error
    assert "logits differ" in str(find_fault(model, runner, VOCAB, mx.float32))


def test_the_memory_used_is_given_back() -> None:
    model = tiny_model("llama")
    runner = slots(model)
    active = mx.get_active_memory()
    find_fault(model, runner, VOCAB, mx.float32)
    assert runner.written_arrays() == []
    assert mx.get_active_memory() == active
