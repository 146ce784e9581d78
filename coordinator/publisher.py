"""What is published on the cluster link, and when: a snapshot when members come or go or somebody subscribes, an
update of an engine core when its state changed, nothing when nothing did.

Changes only mark what is due; `flush`, called once per turn of the loop, makes the messages. So a burst of reports
and requests costs one update per engine core, without a timer.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from coordinator.events import Identity
from protocol.identifiers import Incarnation
from protocol.messages import (
    ClusterSnapshot,
    CoordinatorToAll,
    EngineState,
    EngineUpdate,
    MemberProcess,
    TenantState,
)

COUNTS_INTERVAL_S = 1.0
"""When only counters of refused requests and malformed frames changed, a snapshot waits for this long at most."""


class ClusterView(msgspec.Struct, frozen=True):
    """All that a snapshot holds but its sequence number."""

    engines: Sequence[EngineState]
    api_servers: list[str]
    malformed_total: int
    rejected_total: dict[str, int]
    silent: list[MemberProcess]
    tenants: list[TenantState]
    settling: bool


class ClusterPublisher:
    """Owner of the sequence of published messages and of what is due."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._sequence = 0
        self._snapshot_due_s = math.inf
        self._changed: dict[Identity, None] = {}

    def membership_changed(self) -> None:
        """A member came or went, or somebody subscribed: a snapshot is due now."""
        self._snapshot_due_s = -math.inf

    def counts_changed(self, now_s: float) -> None:
        """A counter that only snapshots carry has changed."""
        self._snapshot_due_s = min(self._snapshot_due_s, now_s + COUNTS_INTERVAL_S)

    def engine_changed(self, engine: Identity) -> None:
        """An engine core's load or number of requests has changed."""
        self._changed[engine] = None

    def next_deadline_s(self) -> float:
        """When the next snapshot is due; infinity when none is."""
        return self._snapshot_due_s

    def flush(
        self, now_s: float, view: Callable[[], ClusterView], state_of: Callable[[Identity], EngineState | None]
    ) -> list[CoordinatorToAll]:
        """The messages that are due. `state_of` answers None for an engine core that is gone."""
        changed, self._changed = self._changed, {}
        if self._snapshot_due_s <= now_s:
            self._snapshot_due_s = math.inf
            return [self._snapshot(view())]
        states = [state_of(engine) for engine in changed]
        return [EngineUpdate(self._next_sequence(), state) for state in states if state is not None]

    def _snapshot(self, view: ClusterView) -> ClusterSnapshot:
        return ClusterSnapshot(
            self._next_sequence(),
            self._incarnation,
            list(view.engines),
            view.api_servers,
            view.malformed_total,
            dict(view.rejected_total),
            view.silent,
            view.tenants,
            view.settling,
        )

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence
