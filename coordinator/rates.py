"""How fast something happens, over the last seconds."""

from collections import deque

WINDOW_S = 10.0
"""Long enough to hold some steps and ends of requests, short enough to follow a change of load."""


class Rate:
    """Owner of a recent count, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()

    def record(self, amount: int, now_s: float) -> None:
        """So much has happened now."""
        second = int(now_s)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1] = (second, self._buckets[-1][1] + amount)
        else:
            self._buckets.append((second, amount))
            self._forget(now_s)

    def per_second(self, now_s: float) -> float:
        """Its amount a second, over the window or as much of it as there was anything."""
        self._forget(now_s)
        if not self._buckets:
            return 0.0
        observed_s = min(max(now_s - self._buckets[0][0], 1.0), WINDOW_S)
        return sum(amount for _, amount in self._buckets) / observed_s

    def _forget(self, now_s: float) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - WINDOW_S:
            self._buckets.popleft()
