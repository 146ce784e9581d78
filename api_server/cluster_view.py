"""The cluster as the coordinator publishes it: whole snapshots, and updates numbered so that a loss is noticed."""

from protocol.identifiers import EngineIndex, Incarnation
from protocol.messages import ClusterSnapshot, EngineState, EngineUpdate, TenantState

CARD_HASHES_PER_CLUSTER = 1_024
"""Model cards that are looked at; engine cores beyond that many different ones are shown, but not served from."""


class ClusterView:
    """Owns the last known state of all engine cores."""

    def __init__(self) -> None:
        self._snapshot = ClusterSnapshot(sequence=-1, incarnation=Incarnation(""))
        self._engines: dict[EngineIndex, EngineState] = {}
        self._sequence = -1
        self.wants_snapshot = True
        """Whether updates were lost, or nothing has come yet: subscribe anew (each subscription brings a snapshot)."""

    @property
    def engines(self) -> list[EngineState]:
        """By index."""
        return [self._engines[index] for index in sorted(self._engines)]

    @property
    def is_settling(self) -> bool:
        """Whether the coordinator may be about to meet engine cores that it does not know yet."""
        return self._snapshot.settling

    @property
    def malformed_total(self) -> int:
        """Messages that the coordinator dropped as malformed."""
        return self._snapshot.malformed_total

    @property
    def rejected_total(self) -> dict[str, int]:
        """Requests that the coordinator refused, by reason."""
        return self._snapshot.rejected_total

    @property
    def tenants(self) -> list[TenantState]:
        """Those that have limits."""
        return self._snapshot.tenants

    def take_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Replaces the state. One that is older than what is known already is passed over."""
        if snapshot.incarnation == self._snapshot.incarnation and snapshot.sequence < self._sequence:
            return
        self._snapshot = snapshot
        self._engines = {engine.index: engine for engine in snapshot.engines}
        self._sequence = snapshot.sequence
        self.wants_snapshot = False

    def take_update(self, update: EngineUpdate) -> None:
        """Replaces one engine core's state; after a gap, waits for a snapshot instead."""
        if self.wants_snapshot or update.sequence <= self._sequence:
            return
        if update.sequence > self._sequence + 1 or update.engine.index not in self._engines:
            self.wants_snapshot = True
            return
        self._sequence = update.sequence
        self._engines[update.engine.index] = update.engine

    def card_hashes(self) -> set[str]:
        """Cards of the engine cores there are, draining or not."""
        hashes = dict.fromkeys(engine.model.card_hash for engine in self.engines)
        return set(list(hashes)[:CARD_HASHES_PER_CLUSTER])

    def serving_card_hashes(self) -> set[str]:
        """Cards of the engine cores that take new requests."""
        return {engine.model.card_hash for engine in self._engines.values() if not engine.load.draining}

    def check_invariants(self) -> None:
        """For tests."""
        assert all(index == engine.index for index, engine in self._engines.items())
        assert self._sequence >= self._snapshot.sequence
