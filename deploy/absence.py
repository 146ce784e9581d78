"""Whether engine cores of this machine that run are among those that the coordinator knows.

One that was frozen when its coordinator died never says Hello to the next one, which cannot miss whom it has not met.
Only the supervisor knows of both sides. Snapshots tell who is there; before one that is missing is called absent, a
snapshot is asked for, so that a coordinator that has stopped itself, and says nothing, costs no engine core its life.
"""

from collections.abc import Collection, Iterable

from protocol.identifiers import Incarnation

ABSENT_AFTER_S = 6.0
"""An engine core that lives meets a new coordinator at once; one that falls silent is given up within three seconds."""


class AbsenceWatch:
    """Owner of since when engine cores have been missing in the coordinator's snapshots."""

    def __init__(self) -> None:
        self._coordinator: Incarnation | None = None
        self._missing_since_s: dict[str, float] = {}
        self._has_asked = False

    def told(
        self, coordinator: Incarnation, members: Collection[str], running: Iterable[str], now_s: float
    ) -> list[str]:
        """A snapshot has come: `members` are in it, `running` should be. Returns those that have been missing for too
        long. A new coordinator has to be given time for all anew."""
        if coordinator != self._coordinator:
            self._coordinator = coordinator
            self._missing_since_s.clear()
        missing = [name for name in running if name not in members]
        self._missing_since_s = {name: self._missing_since_s.get(name, now_s) for name in missing}
        self._has_asked = False
        return [name for name in missing if self._missing_since_s[name] + ABSENT_AFTER_S <= now_s]

    def forget(self, name: str) -> None:
        """Its process has ended."""
        self._missing_since_s.pop(name, None)

    def next_deadline_s(self) -> float | None:
        """When `has_to_ask` may become true; None when nobody is missing, or a snapshot is to come anyway."""
        if self._has_asked:
            return None
        return min((since_s + ABSENT_AFTER_S for since_s in self._missing_since_s.values()), default=None)

    def has_to_ask(self, now_s: float) -> bool:
        """Whether a snapshot is to be asked for now; true once, until one comes."""
        deadline_s = self.next_deadline_s()
        self._has_asked = self._has_asked or (deadline_s is not None and deadline_s <= now_s)
        return deadline_s is not None and deadline_s <= now_s
