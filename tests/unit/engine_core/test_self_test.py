from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from slot_world import LEVELS_OF_MODELS
from tiny_models import VOCAB, tiny_model

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.mlx_lm_adapter import trace_model
from engine_core.output_head import selection_of
from engine_core.ragged_step import PrefillSpan
from engine_core.row_runner import RowRunner
from engine_core.row_states import Rows
from engine_core.self_test import TEST_ROWS, find_fault, pool_lengths_to_test, window_to_fill
from engine_core.slot_buffers import SlotPools
from engine_core.slot_layout import LayerLayout
from engine_core.slot_runner import Level, SlotRunner


def slots(model: Any, level: Level = Level.FUSED, filling: int = 0, kind: type[SlotRunner] = SlotRunner) -> SlotRunner:
    layouts = trace_model(model).layouts
    assert layouts is not None
    return kind(model, layouts, pool_lengths_to_test(filling), TEST_ROWS, level, selection_of(model), 64)


@pytest.mark.parametrize(("model_type", "level"), LEVELS_OF_MODELS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_models_that_fit_slots_pass(model_type: str, level: Level, dtype: mx.Dtype) -> None:
    model = tiny_model(model_type)
    model.set_dtype(dtype)
    assert find_fault(model, slots(model, level), VOCAB, trace_model(model).logits_dtype) is None


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba"])
def test_the_row_runner_passes_with_any_model(model_type: str) -> None:
    model = tiny_model(model_type)
    assert find_fault(model, RowRunner(model), VOCAB, mx.float32) is None


def test_a_model_that_takes_positions_from_the_length_of_the_keys_is_found() -> None:
    model = tiny_model("afm7")
    assert "logits differ" in str(find_fault(model, slots(model, Level.PER_POOL), VOCAB, mx.float32))
    assert "does not accept" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_model_that_refuses_slot_caches_is_found() -> None:
    model = tiny_model("gpt_bigcode")
    assert "does not accept slot caches" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_model_that_is_silently_wrong_in_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for no mask when one token is fed: right for one sequence, wrong for slots of different lengths."""
    monkeypatch.setattr("mlx_lm.models.llama.create_attention_mask", lambda h, _: "causal" if h.shape[1] > 1 else None)
    model = tiny_model("llama")
    assert "logits differ" in str(find_fault(model, slots(model, Level.PER_POOL), VOCAB, mx.float32))
    assert find_fault(model, slots(model), VOCAB, mx.float32) is None, "what stands for keys knows each token's own"


@pytest.mark.parametrize("level", list(Level))
def test_a_window_that_is_not_kept_is_found_once_a_sequence_is_longer(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("slot_views", "ragged_views", "ragged_attention"):
        monkeypatch.setattr(f"engine_core.{module}.narrower", lambda *_windows: None)
    model = tiny_model("gemma3_text", sliding_window=64)
    assert find_fault(model, slots(model, level), VOCAB, mx.float32) is None
    assert "logits differ" in str(find_fault(model, slots(model, level, filling=64), VOCAB, mx.float32, filling=64))


def test_a_state_that_goes_to_another_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "of", lambda rows, buffer: buffer[: rows.indices.size])
    model = tiny_model("mamba")
    assert "differ" in str(find_fault(model, slots(model, Level.POOLED_DECODE), VOCAB, mx.float32))


def _nothing(*_args: object) -> None:
    pass


@pytest.mark.parametrize("level", list(Level))
def test_what_is_not_copied_is_found(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr(SlotPools, "copy", _nothing)
    assert "logits differ" in str(find_fault(model, slots(model, level), VOCAB, mx.float32))


def test_a_chunk_that_does_not_see_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefillSpan, "mask", lambda span, window: None)
    model = tiny_model("llama")
    assert "logits differ" in str(find_fault(model, slots(model), VOCAB, mx.float32))


def test_a_window_is_filled_where_it_is_short() -> None:
    layer = LayerLayout(1, 4, 4, mx.float32, mx.float32)
    layouts = [layer, (msgspec.structs.replace(layer, window=512), msgspec.structs.replace(layer, window=900))]
    assert window_to_fill(layouts) == 512
    assert window_to_fill([msgspec.structs.replace(layer, window=4096)]) == 0
    assert window_to_fill([layer]) == 0


class _OffInOneRow(SlotRunner):
    error = 0.0

    def forward(
        self, prefills: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array
    ) -> mx.array | None:
        logits = super().forward(prefills, decodes, token_ids)
        return None if logits is None else logits + (mx.arange(len(decodes))[:, None] == 1) * self.error


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_a_small_error_in_one_row_is_found(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    assert find_fault(model, slots(model, kind=_OffInOneRow), VOCAB, mx.float32) is None
    monkeypatch.setattr(_OffInOneRow, "error", error)
    assert "logits differ" in str(find_fault(model, slots(model, kind=_OffInOneRow), VOCAB, mx.float32))


def test_the_memory_used_is_given_back() -> None:
    model = tiny_model("llama")
    runner = slots(model)
    active = mx.get_active_memory()
    find_fault(model, runner, VOCAB, mx.float32)
    assert runner.written_arrays() == []
    assert mx.get_active_memory() == active
