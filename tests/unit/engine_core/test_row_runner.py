import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import VOCAB, greedy_alone, logits_alone, tiny_model

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache
from engine_core.model_runner import PlanError
from engine_core.row_runner import RowRunner


def make_prompt_cache_in_use(model: Any) -> list[Any]:
    cache: list[Any] = make_prompt_cache(model)
    model(mx.array([[1]]), cache=cache)
    return cache


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba", "afm7", "gpt_bigcode"])
def test_rows_that_run_together_get_the_tokens_they_get_alone(model_type: str) -> None:
    model, draw = tiny_model(model_type), random.Random(2)
    runner = RowRunner(model)
    prompts = {row: [draw.randrange(VOCAB) for _ in range(n)] for row, n in ((0, 30), (3, 5), (1, 1))}
    outputs: dict[int, list[int]] = {row: [] for row in prompts}
    for row, prompt in prompts.items():
        runner.admit(row)
        for start in range(0, len(prompt) - 1, 7):
            runner.prefill(PrefillChunk(row, start, prompt[start : min(start + 7, len(prompt) - 1)]))
    for _ in range(12):
        fed = {row: [*prompts[row], *outputs[row]] for row in prompts}
        decodes = [DecodeRow(row, len(tokens) - 1, tokens[-1], 0) for row, tokens in fed.items()]
        sampled = mx.argmax(runner.decode(decodes), axis=-1)
        mx.eval(sampled, runner.written_arrays())
        assert len(runner.written_arrays()) == 3 * len(cache_arrays(make_prompt_cache_in_use(model)))
        runner.check_invariants()
        for row, token in zip(prompts, sampled.tolist(), strict=True):  # type: ignore[arg-type]
            outputs[row].append(token)
    assert outputs == {row: greedy_alone(model, prompt, 12) for row, prompt in prompts.items()}


def test_a_row_used_again_starts_empty() -> None:
    model = tiny_model("mamba")
    runner = RowRunner(model)
    for token_ids in ([1, 2, 3], [4, 5]):
        runner.admit(0)
        runner.prefill(PrefillChunk(0, 0, token_ids[:-1]))
        found = runner.decode([DecodeRow(0, len(token_ids) - 1, token_ids[-1], 0)])
        assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, token_ids)[-1]), abs=1e-4)
        runner.release(0)
        runner.check_invariants()


def test_a_plan_that_does_not_fit_the_rows_is_refused() -> None:
    runner = RowRunner(tiny_model("mamba"))
    runner.admit(0)
    with pytest.raises(PlanError):
        runner.admit(0)
    with pytest.raises(PlanError):
        runner.decode([DecodeRow(0, 3, 1, 0)])
    with pytest.raises(PlanError):
        runner.prefill(PrefillChunk(1, 0, [1]))
    with pytest.raises(PlanError):
        runner.release(1)
