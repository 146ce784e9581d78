"""Every text architecture of the installed mlx-lm, small and with random weights, served batched as alone."""

import random
from array import array
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from served_table import (
    NOT_TESTED,
    ONE_ROW,
    PAGE,
    PER_POOL,
    POOLED_DECODE,
    REFUSED,
    architectures,
    built,
    level_of,
    page,
    prefixes_of,
)
from tiny_architectures import tiny_model

from engine_core.device import ModelRefused, StepResult
from engine_core.mlx_device import MAX_IN_FLIGHT, MlxDevice
from engine_core.mlx_lm_adapter import load_weights, make_prompt_cache, trace_model
from engine_core.row_runner import RowRunner
from engine_core.runner_choice import checkpoint_size, choose_runner, kv_capacity
from engine_core.sampler import Sampler
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.slot_runner import SlotRunner
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

ROWS = 3
LENGTHS = (32, 128)


class _Server:
    """Device and scheduler as in an engine core, with lookahead; chunks of prefill have 13 tokens at most."""

    def __init__(self, model: Any) -> None:
        trace = trace_model(model)
        capacity = min(kv_capacity(model, trace, 100_000_000, ROWS), 100_000)
        runner = choose_runner(model, trace, LENGTHS, ROWS, 13)
        assert isinstance(runner, SlotRunner | RowRunner)
        self.level = runner.level if isinstance(runner, SlotRunner) else None
        sampler = Sampler(trace.vocab_size, (), may_wait=False)
        self._device = MlxDevice(runner, sampler, trace.vocab_size, capacity, LENGTHS, checkpoint_size(trace))
        self.stores_prefixes = self._device.prefix_block_tokens > 0
        has_states = self._device.checkpoint_tokens > 0
        self.prefixes = ("at checkpoints" if has_states else "to the token") if self.stores_prefixes else "none"
        limits = SchedulerLimits(
            max_num_seqs=ROWS,
            max_num_batched_tokens=13,
            max_model_len=LENGTHS[-1] + 1,
            kv_capacity_tokens=capacity,
            pool_lengths=LENGTHS,
            checkpoint_tokens=self._device.checkpoint_tokens,
        )
        self._scheduler = Scheduler(limits, ())
        self._in_flight = 0
        self.outputs: dict[str, list[int]] = {}
        self.cached_tokens: dict[str, int] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        request = EngineCoreRequest(RequestId(name), ClientIndex(0), 0, "m", len(prompt), sampling, 0.0)
        ids = array("I", prompt)
        chain = prefix_chain(prefix_root("m", "", ""), ids) if self.stores_prefixes else ()
        assert self._scheduler.add(request, ids, chain) == {}
        self.outputs[name] = []

    @property
    def is_busy(self) -> bool:
        return self._scheduler.has_work or self._in_flight > 0

    def step(self) -> None:
        plan = self._scheduler.plan()
        if plan is not None:
            self._device.submit(plan)
            self._in_flight += 1
        if self._in_flight and (plan is None or self._in_flight == MAX_IN_FLIGHT):
            self._in_flight -= 1
            self._take(self._device.collect())
        self._scheduler.check_invariants()
        self._device.check_invariants()

    def _take(self, result: StepResult) -> None:
        for output in self._scheduler.update(result).get(ClientIndex(0), []):
            assert output.error is None
            self.outputs[output.request_id] += output.token_ids
            self.cached_tokens[output.request_id] = self.cached_tokens.get(output.request_id, 0) + output.cached_tokens


def _alone(model: Any, prompt: list[int], count: int) -> list[int]:
    """mlx-lm's own cache: the prompt at once, then token by token."""
    cache = make_prompt_cache(model)
    tokens, fed = list[int](), prompt
    for _ in range(count):
        tokens.append(int(mx.argmax(model(mx.array([fed]), cache=cache)[0, -1]).item()))
        fed = tokens[-1:]
    return tokens


def _requests(vocab_size: int) -> list[tuple[str, list[int], int]]:
    """Name, prompt, tokens wanted. More than there are rows; the last begins like the first, which has ended."""
    draw = random.Random(6)
    prompts = [[draw.randrange(vocab_size) for _ in range(length)] for length in (70, 1, 30, 6, 17)]
    prompts.append(prompts[0][:66] + prompts[2][:3])
    return [(f"r{i}", prompt, count) for i, (prompt, count) in enumerate(zip(prompts, (3, 9, 5, 8, 4, 4), strict=True))]


_DEPENDS_ON_CHUNKS = pytest.mark.xfail(strict=True, reason="mlx-lm gives other logits when it prefills in chunks")


def _served() -> list[Any]:
    return [pytest.param(name, marks=_DEPENDS_ON_CHUNKS) if name == "plamo3" else name for name in built()]


@pytest.mark.parametrize("architecture", _served())
def test_requests_that_join_and_leave_get_what_they_get_alone(architecture: str) -> None:
    model = tiny_model(architecture)
    server = _Server(model)
    assert (server.level, server.prefixes) == (level_of(architecture), prefixes_of(architecture))
    requests = _requests(trace_model(model).vocab_size)
    for name, prompt, count in requests[:-1]:
        server.add(name, prompt, count)
        server.step()
        server.step()
    while len(server.outputs["r0"]) < requests[0][2]:
        server.step()
    server.add(*requests[-1])
    while server.is_busy:
        server.step()
    assert server.outputs == {name: _alone(model, prompt, count) for name, prompt, count in requests}
    assert server.cached_tokens["r5"] == (64 if server.stores_prefixes else 0)


@pytest.mark.parametrize("architecture", list(REFUSED))
def test_an_architecture_that_mlx_lm_ends_the_process_for_is_refused(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{architecture}"}}')
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"weight": mx.zeros(1)})
    with pytest.raises(ModelRefused, match="end the process"):
        load_weights(tmp_path, lambda _share, _name: None)


def test_the_page_says_what_the_tests_find() -> None:
    assert set(architectures()) >= {*ONE_ROW, *PER_POOL, *POOLED_DECODE, *REFUSED, *NOT_TESTED}
    assert PAGE.read_text(encoding="utf-8") == page()
