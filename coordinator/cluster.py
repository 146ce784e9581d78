"""The coordinator's core: what it knows of the cluster, and what it does about each event.

One door: `handle(event, now_s)` changes the state and returns the commands that follow, in order. No socket, clock
or randomness in here.

Two rules hold the order of things together. Clients reaches an engine core before the first request of a new API
server does, since an API server gets its index, without which it cannot submit, only after Clients was sent. And
EngineLost follows the last Accepted of that engine core, since both travel on the same connection.

*Settling.* A coordinator that has just started cannot know whether there was one before it. For the time in which
any living member must have said Hello (the heartbeat timeout) it gives those who have not the benefit of the doubt:
submissions without an engine core wait; an engine core that has streams to API servers not seen yet is not sent
Clients (it would cut them, with what it has still to send); API servers keep the client index that they claim; engine
cores that API servers ask for are not called lost.

*Lost and found.* A member that is silent for too long, cannot be sent to or sends only rubbish is given up: it is dead
for everybody else. When it is heard again after all, it is taken back in: an engine core is told to abort what it
had; an API server gets another client index, by which it knows that all that it had is lost, whatever became of it
meanwhile. An API server that an earlier coordinator had given up comes with its old index: engine cores say in their
Hello whose streams they have kept, so that it gets another index then too, or, when it comes before them, EngineLost.
"""

import math
from typing import assert_never

from coordinator.client_link import ClientLink
from coordinator.engine_link import EngineLink
from coordinator.events import (
    Command,
    Drop,
    Event,
    FromClient,
    FromEngine,
    Garbage,
    Identity,
    Link,
    Publish,
    Subscribed,
    TurnEnded,
    Unreachable,
)
from coordinator.parts import Settings, make_parts
from coordinator.publisher import ClusterView
from protocol.errors import ProtocolError
from protocol.messages import EngineState

STALL_S = 1.0
"""When a turn ends this much later than it had to, the coordinator itself was stopped (a suspended machine, a
debugger): then the silence of the members was ours, and nobody is given up for it."""


class ClusterState:
    """Owner of all that the coordinator knows."""

    def __init__(self, settings: Settings, started_s: float) -> None:
        parts = make_parts(settings, started_s)
        self._heartbeat_timeout_s = settings.heartbeat_timeout_s
        self._outbox = parts.outbox
        self._settling = parts.settling
        self._publisher = parts.publisher
        self._engines = parts.engines
        self._blocks = parts.blocks
        self._cut_offs = parts.cut_offs
        self._clients = parts.clients
        self._cards = parts.cards
        self._dispatcher = parts.dispatcher
        self._liveness = parts.liveness
        self._engine_link = EngineLink(parts)
        self._client_link = ClientLink(parts, self._engine_link)
        self._links: dict[Link, EngineLink | ClientLink] = {
            Link.ENGINES: self._engine_link,
            Link.CLIENTS: self._client_link,
        }
        self._malformed_total = 0
        self._wake_by_s = math.inf

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Takes an event at `now_s` (monotonic clock, seconds); returns what is to be done, in order."""
        match event:
            case FromClient(identity, received):
                try:
                    self._client_link.handle(identity, received, now_s)
                except ProtocolError as error:
                    self._drop(Link.CLIENTS, identity, str(error), now_s)
            case FromEngine(identity, received):
                try:
                    self._engine_link.handle(identity, received, now_s)
                except ProtocolError as error:
                    self._drop(Link.ENGINES, identity, str(error), now_s)
            case Garbage(link, identity, reason):
                self._drop(link, identity, reason, now_s)
            case Unreachable(link, identity, reason):
                self._links[link].lose(identity, reason)
            case Subscribed():
                self._publisher.membership_changed()
            case TurnEnded(drained):
                self._end_turn(drained, now_s)
            case _:
                assert_never(event)
        return self._outbox.take()

    @property
    def num_requests(self) -> int:
        """Requests that are at an engine core or wait for one."""
        return self._dispatcher.num_requests

    def next_deadline_s(self) -> float:
        """When TurnEnded must be handled at the latest, also if nothing happens; infinity for never."""
        return min(
            self._settling.next_deadline_s(),
            self._publisher.next_deadline_s(),
            self._cut_offs.next_deadline_s(),
            *(liveness.next_deadline_s() for liveness in self._liveness.values()),
        )

    def _drop(self, link: Link, identity: Identity, reason: str, now_s: float) -> None:
        self._malformed_total += 1
        self._publisher.counts_changed(now_s)
        self._outbox.add(Drop(identity, reason))
        if self._liveness[link].garbage(identity):
            self._links[link].lose(identity, "it sends nothing but malformed messages")

    def _end_turn(self, drained: bool, now_s: float) -> None:
        if self._settling.is_due(now_s):
            self._settle(now_s)
        if drained:
            self._give_up_silent(now_s)
        if self._cut_offs.expire(now_s):
            self._dispatcher.retry_waiting(now_s)
        self._dispatcher.let_suspect_run(now_s)
        for message in self._publisher.flush(now_s, self._view, self._state_of):
            self._outbox.add(Publish(message))
        self._wake_by_s = self.next_deadline_s()

    def _settle(self, now_s: float) -> None:
        self._settling.end()
        self._publisher.membership_changed()
        for engine in self._engines:
            engine.await_clients(set())
        self._engine_link.send_clients()
        self._client_link.settled()
        self._dispatcher.settled(self._clients.indexes(), now_s)
        self._cards.give_up(self._engine_link.expects_card)

    def _give_up_silent(self, now_s: float) -> None:
        if now_s > self._wake_by_s + STALL_S:
            for liveness in self._liveness.values():
                liveness.extend_all(now_s)
        for link, liveness in self._liveness.items():
            for identity in liveness.expired(now_s):
                reason = f"not heard from for {self._heartbeat_timeout_s:g} s"
                self._links[link].lose(identity, reason, is_silent=True)

    def _view(self) -> ClusterView:
        return ClusterView(
            engines=[engine.state(self._dispatcher.engine_count(engine)) for engine in self._engines],
            api_servers=[client.hello.name for client in self._clients],
            malformed_total=self._malformed_total,
            rejected_total=self._dispatcher.rejected_total,
            silent=self._engines.silent(),
            tenants=self._dispatcher.tenant_states(),
            settling=self._settling.is_active,
        )

    def _state_of(self, identity: Identity) -> EngineState | None:
        engine = self._engines.find(identity)
        return None if engine is None else engine.state(self._dispatcher.engine_count(engine))

    def check_invariants(self) -> None:
        """Raises AssertionError when what the parts know does not agree."""
        self._engines.check_invariants()
        self._clients.check_invariants()
        self._cards.check_invariants()
        self._blocks.check_invariants()
        assert self._blocks.members() <= {engine.identity for engine in self._engines}
        self._dispatcher.check_invariants(self._clients.indexes())
        for liveness in self._liveness.values():
            liveness.check_invariants()
        assert self._liveness[Link.ENGINES].members() == {engine.identity for engine in self._engines}
        assert self._liveness[Link.CLIENTS].members() == {client.identity for client in self._clients}
        assert self._settling.is_active or not any(engine.awaits_clients for engine in self._engines)
