"""Keeps a load on a server: the closed and the open loop."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.record import RequestRecord
from benchmarks.schedule import ClosedLoop, LoadPattern, OpenLoop, RunLimits, arrival_times_s

Clock = Callable[[], float]

Send = Callable[[int, float | None], Awaitable[RequestRecord]]
"""Sends request `index`, scheduled for a time in seconds since the start of the run (None: for now)."""


async def run_load(pattern: LoadPattern, limits: RunLimits, send: Send, clock: Clock, seed: int) -> list[RequestRecord]:
    """Runs to the limits and to the end of all requests. Returns the records in the order of their indices.

    `clock` gives seconds since the start of the run.
    """
    records: list[RequestRecord] = []

    async def keep(index: int, scheduled_s: float | None) -> None:
        records.append(await send(index, scheduled_s))

    match pattern:
        case ClosedLoop():
            await _run_closed(pattern, limits, keep, clock)
        case OpenLoop():
            await _run_open(pattern, limits, keep, clock, seed)
    return sorted(records, key=lambda record: record.index)


Keep = Callable[[int, float | None], Awaitable[None]]


def _indices(limits: RunLimits) -> Iterator[int]:
    return itertools.count() if limits.requests is None else iter(range(limits.requests))


def _is_over(limits: RunLimits, time_s: float) -> bool:
    return limits.duration_s is not None and time_s >= limits.duration_s


async def _run_closed(pattern: ClosedLoop, limits: RunLimits, keep: Keep, clock: Clock) -> None:
    indices = _indices(limits)

    async def stream() -> None:
        for index in indices:  # shared by all streams: whoever is free takes the next
            if _is_over(limits, clock()):
                return
            await keep(index, None)

    async with asyncio.TaskGroup() as group:
        for _ in range(pattern.concurrency):
            group.create_task(stream())


async def _run_open(pattern: OpenLoop, limits: RunLimits, keep: Keep, clock: Clock, seed: int) -> None:
    free = asyncio.Semaphore(pattern.max_in_flight)

    async def one(index: int, scheduled_s: float) -> None:
        try:
            await keep(index, scheduled_s)
        finally:
            free.release()

    async with asyncio.TaskGroup() as group:
        for index, scheduled_s in zip(_indices(limits), arrival_times_s(pattern, seed), strict=False):
            if _is_over(limits, scheduled_s):
                return
            await asyncio.sleep(max(0.0, scheduled_s - clock()))
            await free.acquire()
            group.create_task(one(index, scheduled_s))
