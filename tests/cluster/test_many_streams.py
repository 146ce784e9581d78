"""64 streams at once with mixed parameters and clients that leave: the rest is complete, nothing stays behind."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest
from shoal_process import ShoalProcess

pytestmark = pytest.mark.cluster

STREAMS = 64
SETTLE_LIMIT_S = 10.0
BACK_TO_ZERO = ("shoal:num_requests_running", "shoal:num_requests_waiting", "shoal:http_requests_in_flight")


def request_body(rng: random.Random, model: str) -> dict[str, Any]:
    """A streaming request with its own length and sampling parameters; its output length is certain."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": " ".join(rng.choice(["red", "blue", "fish", "salt", "wind"]) for _ in range(rng.randrange(1, 120))),
        "max_tokens": rng.randrange(4, 40),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    mixes: list[Mapping[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.9, "seed": rng.randrange(1000)},
        {"temperature": 1.2, "top_k": 40},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1},
        {"temperature": 0, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "logit_bias": {"5": -100, "6": 5}},
    ]
    return body | dict(rng.choice(mixes))


class StreamResult(msgspec.Struct):
    """What one client saw."""

    body: dict[str, Any]
    left_early: bool = False
    texts: list[str] = []
    finish_reasons: list[str] = []
    usages: list[dict[str, Any]] = []
    done: int = 0


async def run_stream(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> StreamResult:
    result = StreamResult(body, texts=[], finish_reasons=[], usages=[])
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if leave_after is not None and len(result.texts) >= leave_after:
                result.left_early = True
                return result
            read_event(line, result)
    return result


def read_event(line: str, result: StreamResult) -> None:
    if line == "data: [DONE]":
        result.done += 1
    elif line.startswith("data: "):
        assert result.done == 0, "an event after [DONE]"
        event = msgspec.json.decode(line[len("data: ") :])
        assert "error" not in event, event
        for choice in event["choices"]:
            assert not result.finish_reasons, "an event after the finish reason"
            result.texts += [choice["text"]] if choice["text"] else []
            result.finish_reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        result.usages += [event["usage"]] if event.get("usage") else []


async def run_all(shoal: ShoalProcess, model: str, seed: int) -> list[StreamResult]:
    rng = random.Random(seed)
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=shoal.url, timeout=240, limits=limits) as client:
        return await asyncio.gather(
            *(
                run_stream(client, request_body(rng, model), rng.randrange(3) if number % 4 == 0 else None)
                for number in range(STREAMS)
            )
        )


def check_streams(shoal: ShoalProcess, results: list[StreamResult]) -> None:
    survivors = [result for result in results if not result.left_early]
    assert len(survivors) >= STREAMS * 3 // 4
    for result in survivors:
        assert result.done == 1
        assert result.finish_reasons == ["length"]
        assert [usage["completion_tokens"] for usage in result.usages] == [result.body["max_tokens"]]
    shoal.wait_for(
        lambda: all(shoal.metric(name) == 0 for name in BACK_TO_ZERO), SETTLE_LIMIT_S, "something is left running"
    )


def test_simulated_streams_end_complete_and_leave_nothing(sim_cluster: ShoalProcess) -> None:
    check_streams(sim_cluster, asyncio.run(run_all(sim_cluster, "sim", seed=1)))


@pytest.mark.model
def test_demo_streams_end_complete_and_leave_nothing(demo_cluster: ShoalProcess) -> None:
    check_streams(demo_cluster, asyncio.run(run_all(demo_cluster, "SmolLM2-135M-Instruct", seed=2)))


def test_client_that_leaves_a_plain_request_frees_the_engine_core(sim_cluster: ShoalProcess) -> None:
    body = {"model": "sim", "prompt": "leave me", "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{sim_cluster.url}/v1/completions", json=body, timeout=0.5)
    sim_cluster.wait_for(
        lambda: all(sim_cluster.metric(name) == 0 for name in BACK_TO_ZERO), 2.0, "the request goes on"
    )
