import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import VOCAB, greedy_alone, logits_alone, tiny_model

from engine_core.device import (
    Admission,
    BlockId,
    BlockRestore,
    BlockSave,
    DecodeRow,
    PrefillChunk,
    RowCopy,
    Slot,
    StepPlan,
)
from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache
from engine_core.model_runner import PlanError
from engine_core.row_runner import RowRunner
from protocol.sampling import SamplingParams


def make_prompt_cache_in_use(model: Any) -> list[Any]:
    cache: list[Any] = make_prompt_cache(model)
    model(mx.array([[1]]), cache=cache)
    return cache


def admit(runner: RowRunner, *rows: int, releases: Sequence[int] = ()) -> None:
    admissions = [Admission(row, Slot(0, row), (), (), SamplingParams(max_tokens=1)) for row in rows]
    runner.prepare(StepPlan(releases=releases, admissions=admissions))
    runner.check_invariants()


def forward(runner: RowRunner, chunks: Sequence[PrefillChunk], decodes: Sequence[DecodeRow] = ()) -> mx.array | None:
    logits = runner.forward(chunks, decodes, mx.array([decode.token_id or 0 for decode in decodes], mx.uint32))
    mx.eval(runner.written_arrays(), [] if logits is None else logits)
    runner.check_invariants()
    return logits


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba", "afm7", "gpt_bigcode"])
def test_rows_that_run_together_get_the_tokens_they_get_alone(model_type: str) -> None:
    model, draw = tiny_model(model_type), random.Random(2)
    runner = RowRunner(model)
    prompts = {row: [draw.randrange(VOCAB) for _ in range(n)] for row, n in ((0, 30), (3, 5), (1, 1))}
    outputs: dict[int, list[int]] = {row: [] for row in prompts}
    admit(runner, *prompts)
    for row, prompt in prompts.items():
        for start in range(0, len(prompt) - 1, 7):
            forward(runner, [PrefillChunk(row, start, prompt[start : min(start + 7, len(prompt) - 1)])])
    for _ in range(12):
        fed = {row: [*prompts[row], *outputs[row]] for row in prompts}
        logits = forward(runner, [], [DecodeRow(row, len(ids) - 1, ids[-1], 0) for row, ids in fed.items()])
        assert len(runner.written_arrays()) == 3 * len(cache_arrays(make_prompt_cache_in_use(model)))
        assert logits is not None
        for row, token in zip(prompts, mx.argmax(logits, axis=-1).tolist(), strict=True):  # type: ignore[arg-type]
            outputs[row].append(token)
    assert outputs == {row: greedy_alone(model, prompt, 12) for row, prompt in prompts.items()}


def test_a_row_used_again_starts_empty() -> None:
    model = tiny_model("mamba")
    runner = RowRunner(model)
    admit(runner, 0)
    for token_ids in ([1, 2, 3], [4, 5]):
        chunk = PrefillChunk(0, 0, token_ids[:-1])
        found = forward(runner, [chunk], [DecodeRow(0, len(token_ids) - 1, token_ids[-1], 0)])
        assert found is not None
        assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, token_ids)[-1]), abs=1e-4)
        admit(runner, 0, releases=[0])


def test_what_is_fed_is_what_the_device_sampled() -> None:
    model = tiny_model("mamba")
    runner = RowRunner(model)
    admit(runner, 0)
    found = runner.forward([], [DecodeRow(0, 0, None, 0)], mx.array([9], mx.uint32))
    assert found is not None
    assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, [9])[-1]), abs=1e-4)


def test_a_plan_that_does_not_fit_the_rows_is_refused() -> None:
    runner = RowRunner(tiny_model("mamba"))
    admit(runner, 0)
    with pytest.raises(PlanError):
        admit(runner, 0)
    with pytest.raises(PlanError):
        forward(runner, [], [DecodeRow(0, 3, 1, 0)])
    with pytest.raises(PlanError):
        forward(runner, [PrefillChunk(1, 0, [1])])
    with pytest.raises(PlanError):
        admit(runner, releases=[1])
    for plan in (
        StepPlan(drops=[BlockId(1)]),
        StepPlan(saves=[BlockSave(BlockId(1), 0, 0)]),
        StepPlan(copies=[RowCopy(0, 1, 3)]),
        StepPlan(restores=[BlockRestore(0, [BlockId(1)], 3)]),
    ):
        with pytest.raises(PlanError):
            runner.prepare(plan)
    with pytest.raises(PlanError):
        runner.read_block(BlockId(1))
    assert runner.forward([], [], mx.array([], mx.uint32)) is None
