"""Which models there are, how fast their requests finish, and so when to come back when a model is full."""

from collections import deque

from coordinator.routing import ModelView

RATE_WINDOW_S = 10.0
"""The finishing rate is taken over this many seconds."""
RETRY_SHARE = 0.1
"""A refused request is told to wait until this share of the requests in flight will have finished: waiting for a
single place would bring all the refused ones back at the same moment."""
MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 30.0
MAX_MODELS = 256
"""Models remembered; at the limit the one that was met longest ago is forgotten."""


class FinishRate:
    """Owner of the recent count of finished requests, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()

    def record(self, now_s: float) -> None:
        """One request has finished now."""
        second = int(now_s)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1] = (second, self._buckets[-1][1] + 1)
        else:
            self._buckets.append((second, 1))
            self._forget(now_s)

    def per_second(self, now_s: float) -> float:
        """Finished requests a second over the window."""
        self._forget(now_s)
        return sum(count for _, count in self._buckets) / RATE_WINDOW_S

    def _forget(self, now_s: float) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - RATE_WINDOW_S:
            self._buckets.popleft()


class Admission:
    """Owner of the models that have been served, each with its finishing rate."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._rates: dict[str, FinishRate] = {}

    def served(self, model: str) -> None:
        """An engine core with this model has joined."""
        rate = self._rates.pop(model) if model in self._rates else FinishRate()
        self._rates[model] = rate
        if len(self._rates) > MAX_MODELS:
            del self._rates[next(iter(self._rates))]

    def finished(self, model: str, now_s: float) -> None:
        """A request for this model has ended by itself."""
        if model in self._rates:
            self._rates[model].record(now_s)

    def view(self, model: str, in_flight: int, now_s: float) -> ModelView:
        """What the routing policy must know of the model."""
        return ModelView(
            served=model in self._rates,
            in_flight=in_flight,
            max_requests=self._max_requests,
            retry_after_s=self._retry_after_s(model, now_s),
        )

    def _retry_after_s(self, model: str, now_s: float) -> float:
        rate = self._rates[model].per_second(now_s) if model in self._rates else 0.0
        if rate == 0.0:
            return MAX_RETRY_AFTER_S
        return min(max(RETRY_SHARE * self._max_requests / rate, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)

    def check_invariants(self) -> None:
        """Raises AssertionError when a limit is broken."""
        assert len(self._rates) <= MAX_MODELS
