"""An open loop of callers who ask for ten times what a small cluster can do."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import httpx
import msgspec
from shoal_process import ShoalProcess, running_shoal

ROWS, WAITING, TOKENS, DECODE_MS = 4, 8, 20, 20
CAPACITY_PER_S = ROWS / (TOKENS * DECODE_MS / 1000)
OVERLOAD = 10
SECONDS = 3.0
LONGEST_WAIT_S = (WAITING + ROWS) / CAPACITY_PER_S


class Outcome(msgspec.Struct):
    """What one caller saw."""

    status: int
    first_s: float
    """From sending to the first event with text, or to the refusal."""
    retry_after_s: float = 0.0


@contextlib.contextmanager
def small_cluster() -> Iterator[ShoalProcess]:
    """One simulated engine core with few places."""
    device = f"sim:decode_ms={DECODE_MS},decode_ms_per_row=0,prefill_ms_per_token=0.01"
    limits = ("--max-num-seqs", str(ROWS), "--max-waiting-requests", str(WAITING))
    with running_shoal(device, "--engines", "1", *limits) as cluster:
        yield cluster


async def call(client: httpx.AsyncClient, priority: int) -> Outcome:
    """One streamed request."""
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
    """Sends what it has to send in time, whatever becomes of it."""
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
    """The value below which this share of the others is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def memory(shoal: ShoalProcess) -> dict[int, int]:
    """Resident bytes of coordinator and API servers, by pid."""
    return {
        child.pid: child.memory_info().rss for role in ("coordinator", "api-server") for child in shoal.children(role)
    }
