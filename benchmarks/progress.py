"""Tells how far a run is while it lasts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

LINE_EVERY_S = 10.0

Clock = Callable[[], float]
Say = Callable[[str], None]
"""Tells the user how far the measurement is."""


class Progress:
    """Owner of a run's counts of requests."""

    def __init__(self, wanted: int | None) -> None:
        self._wanted = wanted
        self._started = 0
        self._failed = 0
        self._ended = 0

    def request_started(self) -> None:
        """One more is under way."""
        self._started += 1

    def request_ended(self, failed: bool) -> None:
        """One of those under way is over."""
        self._ended += 1
        self._failed += failed

    def line(self, time_s: float) -> str:
        """For example `30 s: 12 of 64 requests done, 8 in flight`; `time_s` is since the start of the run."""
        wanted = "" if self._wanted is None else f" of {self._wanted}"
        failed = f" ({self._failed} failed)" if self._failed else ""
        return f"  {time_s:.0f} s: {self._ended}{wanted} requests done{failed}, {self._started - self._ended} in flight"


@contextlib.asynccontextmanager
async def told(progress: Progress, say: Say, clock: Clock, every_s: float = LINE_EVERY_S) -> AsyncIterator[None]:
    """Says a line each `every_s` seconds while the body lasts."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(every_s)
            say(progress.line(clock()))

    teller = asyncio.create_task(tell(), name="progress")
    try:
        yield
    finally:
        teller.cancel()
