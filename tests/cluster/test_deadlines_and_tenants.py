"""Requests that run out of time wherever they are, and tenants that run out of tokens."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

BODY: dict[str, Any] = {"model": "sim", "prompt": "x", "ignore_eos": True, "temperature": 0}
SLOW = "sim:decode_ms=20,prefill_ms_per_token=2"
TENANTS = """
[small]
keys = ["sk-small"]
tokens_per_minute = 240

[narrow]
keys = ["sk-narrow-1", "sk-narrow-2"]
max_streams = 2
"""


@pytest.fixture(scope="module")
def slow() -> Iterator[ShoalProcess]:
    """One engine core that takes one request at a time, 128 ms a step of prefill."""
    limits = ("--max-num-seqs", "1", "--max-num-batched-tokens", "64", "--request-timeout-s", "30")
    with running_shoal(SLOW, "--engines", "1", *limits) as shoal:
        yield shoal


def within(shoal: ShoalProcess, seconds: float, **fields: Any) -> tuple[httpx.Response, float]:
    """The answer to a request with this deadline, and how long it took."""
    started_s = time.monotonic()
    headers = {"X-Request-Timeout": str(seconds)}
    answer = httpx.post(f"{shoal.url}/v1/completions", json=BODY | fields, headers=headers, timeout=60)
    return answer, time.monotonic() - started_s


def nothing_is_left(shoal: ShoalProcess) -> None:
    gauges = ("shoal:num_requests_running", "shoal:num_requests_waiting", "shoal:http_requests_in_flight")
    shoal.wait_for(lambda: all(shoal.metric(name) == 0 for name in gauges), 10, "something is left")


@pytest.mark.parametrize("stream", [False, True])
def test_in_decode_it_ends_with_what_there_is(slow: ShoalProcess, stream: bool) -> None:
    answer, seconds = within(slow, 0.6, max_tokens=500, stream=stream)
    assert answer.status_code == 200 and 0.55 < seconds < 1.5
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    if stream:
        assert lines.pop() == "[DONE]"
    choices = [choice for line in lines for choice in msgspec.json.decode(line)["choices"]]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("length", "timeout")
    assert 5 < sum(len(choice["text"]) for choice in choices) < 40
    nothing_is_left(slow)


def test_in_prefill_nothing_has_come_and_the_work_stops(slow: ShoalProcess) -> None:
    answer, seconds = within(slow, 0.5, prompt="word " * 400, max_tokens=5)
    assert answer.status_code == 504 and 0.45 < seconds < 1.2
    assert answer.json()["error"]["code"] == "timeout"
    nothing_is_left(slow)


def test_in_the_queue_of_an_engine_core(slow: ShoalProcess) -> None:
    async def both() -> tuple[int, int, float]:
        async with httpx.AsyncClient(base_url=slow.url, timeout=60) as client:
            first = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 100}))
            await asyncio.sleep(0.3)
            started_s = time.monotonic()
            second = await client.post(
                "/v1/completions", json={**BODY, "max_tokens": 1}, headers={"X-Request-Timeout": "0.4"}
            )
            return (await first).status_code, second.status_code, time.monotonic() - started_s

    first, second, _ = asyncio.run(both())
    assert (first, second) == (200, 504)
    nothing_is_left(slow)


def test_of_several_choices_those_that_ran_are_kept(slow: ShoalProcess) -> None:
    answer, seconds = within(slow, 0.8, max_tokens=25, n=3)
    assert answer.status_code == 200 and seconds < 1.8
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 3
    assert sorted(len(choice["text"]) for choice in choices)[-1] == 25
    assert sum(choice["stop_reason"] == "timeout" for choice in choices) >= 1
    nothing_is_left(slow)


def test_what_ends_in_time_does_not_notice(slow: ShoalProcess) -> None:
    answer, _ = within(slow, 20, max_tokens=5)
    assert answer.json()["choices"][0]["stop_reason"] is None
    assert slow.metric("shoal:engine_requests_finished_total", finished_reason="timeout") >= 5


# --- tenants --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    path = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    path.write_text(TENANTS)
    options = ("--engines", "1", "--tenants-file", str(path), "--api-key", "sk-own")
    with running_shoal("sim:decode_ms=10,eos_after=5", *options) as shoal:
        yield shoal


def as_tenant(shoal: ShoalProcess, key: str, **fields: Any) -> httpx.Response:
    """A request on a connection of its own, so that either API server may get it."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{shoal.url}/v1/completions", json=BODY | fields, headers=headers, timeout=30)


def test_tokens_are_reserved_and_what_was_not_used_comes_back(shared: ShoalProcess) -> None:
    for _ in range(8):  # each reserves more than half of a minute's tokens and uses 6
        answer = as_tenant(shared, "sk-small", max_tokens=150, ignore_eos=False)
        assert answer.status_code == 200, answer.text
    assert as_tenant(shared, "sk-small", max_tokens=150).status_code == 200
    refused = as_tenant(shared, "sk-small", max_tokens=150)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["x-ratelimit-limit-tokens"] == "240"
    assert int(refused.headers["retry-after"]) >= 1
    assert as_tenant(shared, "sk-own", max_tokens=150).status_code == 200
    shared.wait_for(lambda: shared.metric("shoal:tenant_rejected_total", tenant="small") == 1, 5, "not counted")
    shared.wait_for(lambda: shared.metric("shoal:tenant_tokens_total", tenant="small") > 150, 5, "not counted")
    assert "sk-small" not in shared.log


def test_generations_at_once_are_counted_over_all_api_servers_and_keys(shared: ShoalProcess) -> None:
    async def run() -> list[int]:
        async def ask(number: int) -> int:
            headers = {"authorization": f"Bearer sk-narrow-{1 + number % 2}"}
            async with httpx.AsyncClient(base_url=shared.url, timeout=30, headers=headers) as client:
                answer = await client.post("/v1/completions", json={**BODY, "max_tokens": 60})
                return answer.status_code

        return await asyncio.gather(*(ask(number) for number in range(6)))

    assert sorted(asyncio.run(run())) == [200, 200, 429, 429, 429, 429]
    assert as_tenant(shared, "sk-narrow-2", max_tokens=3).status_code == 200


def test_a_bad_file_of_tenants_is_found_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text("[small]\nkeys = []\n")
    shoal = ShoalProcess(["sim:", "--tenants-file", str(path)]).start(wait=False)
    assert shoal.process.wait(20) == 1
    assert "[small] has neither keys nor key_sha256" in shoal.log
