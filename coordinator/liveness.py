"""When each member of a link was last heard from, and how much rubbish it has sent since."""

import math

from coordinator.events import Identity

MAX_GARBAGE_IN_A_ROW = 100
"""A member that sends this many malformed messages with none well-formed in between is hopeless and dropped."""


class Liveness:
    """Owner of the heartbeat deadlines of one link's members."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines_s: dict[Identity, float] = {}
        self._garbage: dict[Identity, int] = {}

    def heard(self, identity: Identity, now_s: float) -> None:
        """A well-formed message of a member has come; the first one makes it a member."""
        self._deadlines_s[identity] = now_s + self._timeout_s
        self._garbage.pop(identity, None)

    def garbage(self, identity: Identity) -> bool:
        """A malformed message has come; returns whether its sender is a member and hopeless by now."""
        if identity not in self._deadlines_s:
            return False
        self._garbage[identity] = self._garbage.get(identity, 0) + 1
        return self._garbage[identity] >= MAX_GARBAGE_IN_A_ROW

    def forget(self, identity: Identity) -> None:
        """No member any more."""
        self._deadlines_s.pop(identity, None)
        self._garbage.pop(identity, None)

    def expired(self, now_s: float) -> list[Identity]:
        """The members whose deadline has passed."""
        return [identity for identity, deadline_s in self._deadlines_s.items() if deadline_s <= now_s]

    def extend_all(self, now_s: float) -> None:
        """Counts all members as heard from now: it was we who did not listen."""
        self._deadlines_s = dict.fromkeys(self._deadlines_s, now_s + self._timeout_s)

    def next_deadline_s(self) -> float:
        """When the first deadline passes; infinity without members."""
        return min(self._deadlines_s.values(), default=math.inf)

    def members(self) -> set[Identity]:
        """Those who are watched."""
        return set(self._deadlines_s)

    def check_invariants(self) -> None:
        """Raises AssertionError when something is kept of one who is no member."""
        assert self._garbage.keys() <= self._deadlines_s.keys()
