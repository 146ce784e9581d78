"""When requests start: the load patterns, and the arrival times of an open loop."""

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

Arrivals = Literal["poisson", "constant"]


class ClosedLoop(msgspec.Struct, frozen=True, tag="closed"):
    """A new request starts when one ends: this many are in flight."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed c={self.concurrency}"


class OpenLoop(msgspec.Struct, frozen=True, tag="open"):
    """Requests start at times fixed beforehand, however slow the server is.

    Latency is counted from those times, so that a request held up by the client's own limit counts as slow: leaving
    the hold-up out is the mistake known as coordinated omission (G. Tene, "How NOT to Measure Latency").
    """

    rate_per_s: float
    arrivals: Arrivals
    max_in_flight: int

    def __str__(self) -> str:
        return f"open {self.rate_per_s:g}/s {self.arrivals}"


LoadPattern = ClosedLoop | OpenLoop


class RunLimits(msgspec.Struct, frozen=True):
    """What ends a run: no request starts after either limit; None is no limit."""

    requests: int | None
    duration_s: float | None


def arrival_times_s(pattern: OpenLoop, seed: int) -> Iterator[float]:
    """Endless start times in seconds from the start of the run; the first is 0. The same seed gives the same times."""
    if pattern.arrivals == "constant":
        index = 0
        while True:
            yield index / pattern.rate_per_s
            index += 1
    generator = random.Random(f"arrivals:{seed}")
    time_s = 0.0
    while True:
        yield time_s
        time_s += generator.expovariate(pattern.rate_per_s)
