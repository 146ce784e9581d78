"""Engine cores and API servers that both reach the coordinator, but not one another."""

import math

from coordinator.events import Identity
from protocol.identifiers import ClientIndex

CUT_OFF_S = 10.0
"""For which no request of an API server goes to an engine core that could not reach it; then it is tried again."""


class CutOffs:
    """Owner of who is not to be asked for whom. Bounded: pairs of members, each for a while."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[Identity, ClientIndex], float] = {}

    def add(self, engine: Identity, client: ClientIndex, now_s: float) -> None:
        """The engine core has found that it cannot reach the API server."""
        self._until_s[engine, client] = now_s + CUT_OFF_S

    def __contains__(self, pair: tuple[Identity, ClientIndex]) -> bool:
        """Whether the engine core is not to be asked for this API server."""
        return pair in self._until_s

    def expire(self, now_s: float) -> bool:
        """Forgets those whose time is up; returns whether there were any: what waits may be tried again then."""
        left = {pair: until_s for pair, until_s in self._until_s.items() if until_s > now_s}
        some_expired = len(left) < len(self._until_s)
        self._until_s = left
        return some_expired

    def next_deadline_s(self) -> float:
        """When `expire` has something to do; infinity for never."""
        return min(self._until_s.values(), default=math.inf)
