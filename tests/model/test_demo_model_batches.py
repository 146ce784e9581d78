"""The demo model through scheduler and device: requests in a changing batch get what they get alone.

In float32 the logits of a batch differ from those of one sequence by up to 1e-4, and the two likeliest tokens rarely
by less than 6e-4: so ids are compared, not logits.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from deploy.cache import cache_directory
from deploy.demo_model import Weights, ensure_demo_model
from engine_core.config import EngineCoreConfig
from engine_core.device import OpenedModel
from engine_core.mlx_device import MlxDevice, open_mlx_device
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

ROWS = 12
TOPICS = ["the sea", "prime numbers", "bread", "France", "an old clock", "rain", "chess", "a fox", "the moon", "glass"]
TASKS = [
    "Tell me about {}.",
    "Write a poem on {}.",
    "{}",
    "List facts: {}, and why they matter.",
    "Once upon a time {} was",
]

Prompt = Sequence[int]


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_demo_model(cache_directory(), Weights.FLOAT32)


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[OpenedModel]:
    config = EngineCoreConfig(
        engines_address="ipc:///unused", model=str(folder), max_num_seqs=ROWS, max_model_len=512, async_scheduling=True
    )
    model = open_mlx_device(config, lambda _share, _name: None)
    yield model
    model.device.close()


@pytest.fixture(scope="module")
def mlx_lm_model(folder: Path) -> tuple[Any, Any]:
    loaded: Any = load(str(folder))
    return loaded[0], loaded[1]


@pytest.fixture(scope="module")
def prompts(mlx_lm_model: tuple[Any, Any]) -> list[Prompt]:
    _, tokenizer = mlx_lm_model
    texts = [task.format(topic) * (1 + 3 * (i % 4 == 0)) for i, task in enumerate(TASKS) for topic in TOPICS]
    return [tokenizer.encode(text) for text in texts]


def serve(
    model: OpenedModel, requests: Sequence[tuple[Prompt, SamplingParams]], seed: int, rows: int, lookahead: bool
) -> list[list[int]]:
    """Outputs of all requests, which arrive at random while others run; a few are aborted on the way besides."""
    assert isinstance(model.device, MlxDevice)
    draw = random.Random(seed)
    limits = SchedulerLimits(
        max_num_seqs=rows,
        max_num_batched_tokens=48,
        max_model_len=512,
        kv_capacity_tokens=rows * 512,
        pool_lengths=tuple(model.device.pool_lengths),
    )
    scheduler = Scheduler(limits, model.card.eos_token_ids)
    outputs: dict[str, list[int]] = {}
    in_flight = 0
    arriving = list(enumerate(requests))
    draw.shuffle(arriving)
    while arriving or scheduler.has_work or in_flight:
        while arriving and (draw.random() < 0.3 or not scheduler.has_work):
            index, (prompt, sampling) = arriving.pop()
            scheduler.add(_request(f"{index}", prompt, sampling), array("I", prompt))
            if draw.random() < 0.15:
                stray = _request(f"stray-{index}", prompt[::-1], sampling)
                scheduler.add(stray, array("I", prompt[::-1]))
                scheduler.abort(
                    [draw.choice([key for key, _, _ in scheduler.live_requests() if "stray" in key.request_id])]
                )
        plan = scheduler.plan()
        if plan is not None:
            model.device.submit(plan)
            in_flight += 1
        if in_flight and (plan is None or in_flight > lookahead):
            in_flight -= 1
            for output in scheduler.update(model.device.collect()).get(ClientIndex(0), []):
                outputs.setdefault(output.request_id, []).extend(output.token_ids)
        scheduler.check_invariants()
        model.device.check_invariants()
    return [outputs[f"{index}"] for index in range(len(requests))]


def _request(name: str, prompt: Prompt, sampling: SamplingParams) -> EngineCoreRequest:
    return EngineCoreRequest(RequestId(name), ClientIndex(0), 0, "demo", len(prompt), sampling, 0.0)


def likeliest_tokens(model: Any, prompt: Prompt, output: Prompt) -> list[int]:
    """What mlx-lm's forward over one sequence finds likeliest at each place of `output`, after all before it.

    When that is `output` itself, then greedy generation of one sequence gives `output`, by induction over its length.
    """
    logits = model(mx.array([[*prompt, *output[:-1]]]), cache=make_prompt_cache(model))
    likeliest: list[int] = mx.argmax(logits[0, len(prompt) - 1 :], axis=-1).tolist()  # type: ignore[assignment]
    return likeliest


@pytest.mark.parametrize("lookahead", [False, True])
def test_greedy_requests_get_the_ids_of_mlx_lm(
    opened: OpenedModel, mlx_lm_model: tuple[Any, Any], prompts: list[Prompt], lookahead: bool
) -> None:
    model, _ = mlx_lm_model
    assert len(prompts) == 50
    lengths = [4 + 2 * (i % 7) for i in range(50)]
    requests = [
        (prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True))
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    outputs = serve(opened, requests, seed=1, rows=ROWS, lookahead=lookahead)
    assert [len(output) for output in outputs] == lengths
    assert outputs == [likeliest_tokens(model, *pair) for pair in zip(prompts, outputs, strict=True)]
    for prompt, output in list(zip(prompts, outputs, strict=True))[::10]:
        generated = generate_step(mx.array(prompt), model, max_tokens=len(output))
        assert [int(token) for token, _ in generated] == output


def test_seeded_requests_repeat_whatever_runs_beside_them(opened: OpenedModel, prompts: list[Prompt]) -> None:
    # With 9 one draw is within 3e-7 of the border between two tokens, which is less than float32 tells apart.
    draw = random.Random(10)
    requests = [
        (
            prompt,
            SamplingParams(
                max_tokens=10,
                ignore_eos=True,
                seed=draw.getrandbits(64),
                temperature=draw.choice([0.5, 1.0, 1.4]),
                top_p=draw.choice([1.0, 0.9]),
                top_k=draw.choice([0, 40, 100]),
                min_p=draw.choice([0.0, 0.05]),
                repetition_penalty=draw.choice([1.0, 1.2]),
                presence_penalty=draw.choice([0.0, 0.5]),
            ),
        )
        for prompt in prompts[::4]
    ]
    in_crowd = serve(opened, requests, seed=2, rows=ROWS, lookahead=True)
    in_pairs = serve(opened, requests, seed=3, rows=2, lookahead=False)
    assert in_crowd == in_pairs
    assert len({tuple(output) for output in in_crowd}) > len(requests) // 2, "the draws do not depend on the request"
