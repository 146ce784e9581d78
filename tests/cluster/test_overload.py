"""Ten times more than the cluster can do: who is let in is served in bounded time, the others hear so at once."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

ROWS, WAITING, TOKENS, DECODE_MS = 4, 8, 20, 20
CAPACITY_PER_S = ROWS / (TOKENS * DECODE_MS / 1000)
OVERLOAD = 10
SECONDS = 3.0
LONGEST_WAIT_S = (WAITING + ROWS) / CAPACITY_PER_S
MIB = 1024 * 1024


class Outcome(msgspec.Struct):
    """What one caller saw."""

    status: int
    first_s: float
    """From sending to the first event with text, or to the refusal."""
    retry_after_s: float = 0.0


@pytest.fixture(scope="module")
def shoal() -> Iterator[ShoalProcess]:
    device = f"sim:decode_ms={DECODE_MS},decode_ms_per_row=0,prefill_ms_per_token=0.01"
    limits = ("--max-num-seqs", str(ROWS), "--max-waiting-requests", str(WAITING))
    with running_shoal(device, "--engines", "1", *limits) as cluster:
        yield cluster


async def call(client: httpx.AsyncClient, priority: int) -> Outcome:
    body = {"model": "sim", "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    started_s, first_s = time.monotonic(), 0.0
    async with client.stream("POST", "/v1/completions", json={**body, "priority": priority}) as answer:
        if answer.status_code != 200:
            await answer.aread()
            seconds = time.monotonic() - started_s
            return Outcome(answer.status_code, seconds, float(answer.headers["retry-after"]))
        async for line in answer.aiter_lines():
            if not first_s and '"text":"' in line and '"text":""' not in line:
                first_s = time.monotonic() - started_s
        assert line == "data: [DONE]" or not line
    return Outcome(200, first_s)


class Run(msgspec.Struct):
    """What became of an open loop of calls."""

    outcomes: list[Outcome]
    seconds: float
    lag_s: float
    """How far the caller itself fell behind at most: on a busy machine its own clock stops, too."""


async def overload(url: str, priority: int = 0) -> Run:
    interval_s = 1 / (OVERLOAD * CAPACITY_PER_S)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as client, asyncio.TaskGroup() as tasks:
        started_s = time.monotonic()
        calls, lag_s = [], 0.0
        for number in range(int(SECONDS / interval_s)):
            await asyncio.sleep(max(0.0, started_s + number * interval_s - time.monotonic()))
            lag_s = max(lag_s, time.monotonic() - started_s - number * interval_s)
            calls.append(tasks.create_task(call(client, priority)))
    return Run([each.result() for each in calls], time.monotonic() - started_s, lag_s)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def memory(shoal: ShoalProcess) -> dict[int, int]:
    return {
        child.pid: child.memory_info().rss for role in ("coordinator", "api-server") for child in shoal.children(role)
    }


def test_ten_times_overload(shoal: ShoalProcess) -> None:
    asyncio.run(overload(shoal.url))  # what is allocated once, is
    before = memory(shoal)
    run = asyncio.run(overload(shoal.url))
    outcomes = run.outcomes
    accepted = [each.first_s for each in outcomes if each.status == 200]
    refused = [each.first_s for each in outcomes if each.status == 429]
    assert len(accepted) + len(refused) == len(outcomes)
    assert len(refused) > 0.7 * len(outcomes)
    longest_wait_s = max(LONGEST_WAIT_S, (WAITING + ROWS) * run.seconds / len(accepted))  # at the rate that there was
    print(f"accepted {len(accepted)}, TTFT p99 {percentile(accepted, 0.99):.2f} s of {longest_wait_s:.2f}, ")
    print(f"the caller's lag {run.lag_s * 1000:.0f} ms; refused ")
    print(f"{len(refused)}: p50 {percentile(refused, 0.5) * 1000:.1f}, p99 {percentile(refused, 0.99) * 1000:.1f} ms")
    assert percentile(accepted, 0.99) < 2 * longest_wait_s + run.lag_s
    assert percentile(refused, 0.5) < 0.05 + run.lag_s
    assert percentile(refused, 0.99) < 0.25 + run.lag_s  # 0.05 on a machine that does nothing else
    assert all(1 <= each.retry_after_s <= 60 for each in outcomes if each.status == 429)
    grown = {pid: rss - before[pid] for pid, rss in memory(shoal).items()}
    assert max(grown.values()) < 8 * MIB, grown
    assert shoal.metric("shoal:coordinator_rejected_total", reason="overloaded") >= len(refused)


def test_less_urgent_requests_leave_room_for_the_others(shoal: ShoalProcess) -> None:
    async def both() -> tuple[list[Outcome], list[Outcome]]:
        batch, interactive = await asyncio.gather(overload(shoal.url, priority=1), sparse(shoal.url))
        return batch.outcomes, interactive

    async def sparse(url: str) -> list[Outcome]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            outcomes = []
            for _ in range(8):
                await asyncio.sleep(0.2)
                outcomes.append(await call(client, priority=0))
            return outcomes

    batch, interactive = asyncio.run(both())
    assert {each.status for each in batch} == {200, 429}
    assert [each.status for each in interactive] == [200] * 8
