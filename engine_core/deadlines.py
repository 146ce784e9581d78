"""When requests must have ended: a heap of deadlines, looked at between steps.

A deadline is wall clock, set by an API server. Hosts are taken to agree within about a second, as NTP keeps them: an
engine core whose clock runs ahead ends a request too soon by as much, one behind leaves it to the API server, which
ends the request itself a little after the deadline.
"""

import heapq
import math
from collections.abc import Iterable

from protocol.messages import RequestKey

_SPARE = 64
"""Entries of ended requests that are left in the heap, beyond as many as there are live ones."""


class Deadlines:
    """Owner of the deadlines of unfinished requests."""

    def __init__(self) -> None:
        self._live: dict[RequestKey, float] = {}
        self._heap: list[tuple[float, RequestKey]] = []
        """With entries of requests that have ended; those are passed over."""

    def add(self, key: RequestKey, deadline_s: float) -> None:
        """A request shall end at this time (wall clock, seconds); 0 for never. One that is there keeps its own."""
        if deadline_s > 0 and key not in self._live:
            self._live[key] = deadline_s
            heapq.heappush(self._heap, (deadline_s, key))

    def forget(self, keys: Iterable[RequestKey]) -> None:
        """These requests have ended; unknown ones are skipped."""
        for key in keys:
            self._live.pop(key, None)
        self._drop_ended()
        if len(self._heap) > 2 * len(self._live) + _SPARE:
            self._heap = [(deadline_s, key) for key, deadline_s in self._live.items()]
            heapq.heapify(self._heap)

    def take_due(self, wall_s: float) -> list[RequestKey]:
        """The requests whose time is up, earliest first; they are forgotten."""
        due = []
        while self._heap and self._heap[0][0] <= wall_s:
            deadline_s, key = heapq.heappop(self._heap)
            if self._live.get(key) == deadline_s:
                del self._live[key]
                due.append(key)
        self._drop_ended()
        return due

    def _drop_ended(self) -> None:
        """From the front alone: nobody is to be woken for a request that has ended."""
        while self._heap and self._live.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    @property
    def next_s(self) -> float:
        """The earliest deadline (wall clock, seconds); infinity when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def check_invariants(self) -> None:
        """Raises AssertionError when a live request is not in the heap, or too many others are."""
        assert set(self._heap) >= {(deadline_s, key) for key, deadline_s in self._live.items()}
        assert not self._heap or self._heap[0][1] in self._live
        assert len(self._heap) <= 2 * len(self._live) + _SPARE + 1
