import logging
from typing import Any

import pytest
from tiny_models import tiny_model

from engine_core.mlx_lm_adapter import UNFIT_FOR_SLOTS, trace_model
from engine_core.model_runner import ModelRunner
from engine_core.row_runner import RowRunner
from engine_core.runner_choice import choose_runner, kv_capacity, levels
from engine_core.slot_runner import Level, SlotRunner


def chosen(model: Any) -> ModelRunner:
    return choose_runner(model, trace_model(model), [256, 512], max_rows=4, max_forward_tokens=64)


@pytest.mark.parametrize(
    ("model_type", "level"), [("qwen3", Level.FUSED), ("gemma3_text", Level.FUSED), ("mamba", Level.POOLED_DECODE)]
)
def test_a_model_gets_the_best_level_that_it_allows(model_type: str, level: Level) -> None:
    runner = chosen(tiny_model(model_type))
    assert isinstance(runner, SlotRunner) and runner.level is level


def test_a_model_that_wants_arrays_runs_pool_by_pool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlx_lm.models import llama

    plain = llama.scaled_dot_product_attention

    def on_arrays(queries: Any, keys: Any, *rest: Any, **options: Any) -> Any:
        return plain(queries, keys + 0, *rest, **options)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", on_arrays)
    with caplog.at_level(logging.INFO):
        runner = chosen(tiny_model("llama"))
    assert isinstance(runner, SlotRunner) and runner.level is Level.PER_POOL
    assert "not with prefill and decode in one forward" in caplog.text and "Keys" in caplog.text


@pytest.mark.parametrize("model_type", ["afm7", "gpt_bigcode"])
def test_a_model_that_no_level_fits_runs_row_by_row(model_type: str) -> None:
    assert isinstance(chosen(tiny_model(model_type)), RowRunner)


def test_a_model_that_is_known_to_be_wrong_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("llama")
    monkeypatch.setitem(UNFIT_FOR_SLOTS, "llama", "it is known")
    assert isinstance(chosen(model), RowRunner)
    assert "one row at a time" in caplog.text and "it is known" in caplog.text


def test_recurrent_models_are_not_tried_with_prefill_in_the_same_forward() -> None:
    layouts = trace_model(tiny_model("mamba")).layouts
    assert layouts is not None and levels(layouts) == [Level.POOLED_DECODE, Level.PER_POOL]


def test_slots_take_a_little_more_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    trace = trace_model(model)
    token_bytes = trace.cost.bytes_per_token + trace.cost.largest_layer_bytes_per_token
    budget = 10 * 256 * token_bytes
    assert kv_capacity(model, trace, budget, max_rows=4) == 9 * 256
    monkeypatch.setitem(UNFIT_FOR_SLOTS, "llama", "it is known")
    assert kv_capacity(model, trace, budget, max_rows=4) == 10 * 256
