"""What engine cores say, and what becomes of it."""

from collections.abc import Sequence
from typing import assert_never

from coordinator.engines import MAX_ENGINES, EngineMember
from coordinator.events import Identity, Link, Note
from coordinator.greeting import is_genuine, is_late, reason_to_refuse
from coordinator.parts import Parts
from protocol.codec import Frame, Received
from protocol.errors import ProtocolError
from protocol.identifiers import ClientIndex
from protocol.messages import (
    PROTOCOL_VERSION,
    BlocksChanged,
    Card,
    Clients,
    EngineHello,
    EngineLost,
    EngineToCoordinator,
    EngineWelcome,
    GetBlocks,
    LoadReport,
    ProcessExited,
    Refused,
    RequestsLost,
)
from protocol.prefix_hash import BLOCK_KEY_BYTES, unpack_block_keys


class EngineLink:
    """Lets engine cores join and leave; takes their reports and cards."""

    def __init__(self, parts: Parts) -> None:
        self._incarnation = parts.incarnation
        self._engines = parts.engines
        self._blocks = parts.blocks
        self._cut_offs = parts.cut_offs
        self._clients = parts.clients
        self._dispatcher = parts.dispatcher
        self._cards = parts.cards
        self._liveness = parts.liveness[Link.ENGINES]
        self._settling = parts.settling
        self._publisher = parts.publisher
        self._outbox = parts.outbox
        self._clients_number = 0

    def handle(self, identity: Identity, received: Received[EngineToCoordinator], now_s: float) -> None:
        """Takes a message. Raises ProtocolError, with nothing changed, when its sender must not send it."""
        message = received.message
        if isinstance(message, EngineHello):
            self._greeted(identity, message, now_s)
            return
        engine = self._engines.find(identity) or self._taken_back(identity, now_s)
        if engine is None:
            raise ProtocolError(f"engines: {type(message).__name__} before Hello")
        self._liveness.heard(identity, now_s)
        match message:
            case LoadReport():
                self._dispatcher.computed(engine, message.load, now_s)
                if engine.reported(message.load, message.adds_received):
                    self._publisher.engine_changed(identity)
                for client_index in message.unreachable:
                    self._cut_off(engine, client_index, now_s)
                self._dispatcher.finished(engine, message.finished, now_s)
            case BlocksChanged():
                self._take_blocks(engine, message, received.buffers)
            case Card():
                if message.card_hash != engine.hello.model.card_hash or len(received.buffers) != 1:
                    raise ProtocolError("engines: a card that is not the announced one")
                self._cards.arrived(message.card_hash, received.buffers[0])
            case _:
                assert_never(message)

    def _cut_off(self, engine: EngineMember, client_index: ClientIndex, now_s: float) -> None:
        """Its outputs do not get to this API server: what it had of it goes elsewhere, and so does what comes soon."""
        client = self._clients.at(client_index)
        if client is None:
            return
        self._cut_offs.add(engine.identity, client_index, now_s)
        self._dispatcher.cut_off(engine, client)
        self._outbox.to_client(client.identity, RequestsLost([], all_of=engine.hello.incarnation))
        self._note(engine, f"cannot reach API server {client.hello.name}: its requests go elsewhere")

    def _take_blocks(self, engine: EngineMember, change: BlocksChanged, buffers: Sequence[Frame]) -> None:
        if len(buffers) != 2 or any(len(buffer) % BLOCK_KEY_BYTES for buffer in buffers):
            raise ProtocolError("engines: blocks that are not told in two buffers of whole keys")
        stored, evicted = (unpack_block_keys(buffer) for buffer in buffers)
        if not self._blocks.told(engine.identity, change, stored, evicted):
            self._outbox.to_engine(engine.identity, GetBlocks())

    def lose(
        self,
        identity: Identity,
        reason: str,
        may_return: bool = True,
        is_silent: bool = False,
        by_fault: bool = False,
    ) -> None:
        """Gives an engine core up, and with it its requests. No effect when there is none with this identity."""
        engine = self._engines.find(identity)
        if engine is None:
            return
        keys = self._dispatcher.engine_gone(engine)
        self._blocks.leave(identity)
        self._engines.leave(engine, keys, may_return, is_silent)
        self._liveness.forget(identity)
        self._tell_clients(EngineLost(engine.index, engine.hello.incarnation, reason, by_fault))
        self._cards.give_up(self.expects_card)
        self._publisher.membership_changed()
        self._note(engine, f"lost with {len(keys)} requests: {reason}")

    def exited(self, exited: ProcessExited) -> None:
        """A process has ended for certain. If it was given up before, it now is known whether by its own fault."""
        reason = "its process has exited"
        engine = self._engines.named(exited.name)
        if engine is not None and engine.hello.pid == exited.pid:
            self.lose(engine.identity, reason, may_return=False, by_fault=exited.by_fault)
        elif lost := self._engines.forget_exited(exited.name, exited.pid):
            self._publisher.membership_changed()
            if exited.by_fault:
                self._tell_clients(EngineLost(lost.engine_index, lost.incarnation, reason, by_fault=True))

    def _tell_clients(self, lost: EngineLost) -> None:
        for client in self._clients:
            self._outbox.to_client(client.identity, lost)

    def send_clients(self) -> None:
        """The API servers have changed: tells the engine cores."""
        for engine in self._engines:
            self._send_clients_to(engine)

    def expects_card(self, card_hash: str) -> bool:
        """Whether a card that is not there may still come."""
        return self._settling.is_active or self._engines.announces(card_hash)

    def _greeted(self, identity: Identity, hello: EngineHello, now_s: float) -> None:
        if not is_genuine(identity, hello):
            raise ProtocolError("engines: a Hello under another's identity")
        others = len(self._engines) - (self._engines.named(hello.name) is not None)
        refusal = reason_to_refuse(hello, others, MAX_ENGINES, self._engines.hellos())
        if refusal is not None:
            self._outbox.to_engine(identity, Refused(refusal))
            self._outbox.add(Note(f"an engine core is refused: {refusal}"))
            return
        known = self._engines.find(identity)
        if is_late(hello, self._engines.lost(identity) if known is None else known.hello):
            return
        if known is not None:
            self._greeted_again(known, hello)
        else:
            self._join(identity, hello)
        self._liveness.heard(identity, now_s)
        self._publisher.membership_changed()
        self._dispatcher.retry_waiting(now_s)

    def _join(self, identity: Identity, hello: EngineHello) -> None:
        self._displace(hello.name)
        engine = self._engines.join(identity, hello)
        is_inherited = self._settling.is_active and not engine.was_given_up
        if is_inherited:
            engine.await_clients(set(hello.clients) - self._clients.indexes())
        self._welcome(engine)
        self._dispatcher.model_served(hello.model.name)
        if is_inherited:
            self._tell_whom_it_has_cut_off(engine)
            self._dispatcher.adopt(engine)
            self._tell_whose_requests_it_lacks(engine)
        else:
            self._dispatcher.reconcile(engine, hello, ())  # the table has none of it: all that it lists is aborted
        self._note(engine, f"joined with {len(hello.requests)} requests, model {hello.model.name}, pid {hello.pid}")

    def _tell_whom_it_has_cut_off(self, engine: EngineMember) -> None:
        """An earlier coordinator had given these API servers up; they have kept their index by coming to us first."""
        incarnation = engine.hello.incarnation
        lost = EngineLost(engine.index, incarnation, "the engine core has cut the streams to this API server")
        for client in self._clients:
            has_worked_for_it = any(run.incarnation == incarnation for run in client.hello.engines)
            if has_worked_for_it and client.index not in engine.hello.clients:
                self._outbox.to_client(client.identity, lost)

    def _tell_whose_requests_it_lacks(self, engine: EngineMember) -> None:
        """An earlier coordinator had accepted them, and died before it handed them on."""
        for client in self._clients:
            if keys := self._dispatcher.lost_requests(client, engine):
                self._outbox.to_client(client.identity, RequestsLost(keys))

    def _displace(self, name: str) -> None:
        older = self._engines.named(name)
        if older is not None:
            self.lose(older.identity, "replaced by a newer process of the same name", may_return=False)
            self._outbox.to_engine(older.identity, Refused(f"a newer process has taken the name {name}"))

    def _greeted_again(self, engine: EngineMember, hello: EngineHello) -> None:
        unseen = engine.greet(hello)
        self._welcome(engine)
        self._dispatcher.reconcile(engine, hello, unseen)
        self._note(engine, f"connected again with {len(hello.requests)} requests")

    def _taken_back(self, identity: Identity, now_s: float) -> EngineMember | None:
        hello = self._engines.lost(identity)
        if hello is not None:
            self._greeted(identity, hello, now_s)
        return self._engines.find(identity)

    def _welcome(self, engine: EngineMember) -> None:
        want_card = engine.hello.model.card_hash not in self._cards
        welcome = EngineWelcome(PROTOCOL_VERSION, self._incarnation, engine.index, want_card, engine.hello.greeting)
        self._outbox.to_engine(engine.identity, welcome)
        self._send_clients_to(engine)

    def _send_clients_to(self, engine: EngineMember) -> None:
        if not engine.awaits_clients:
            self._clients_number += 1
            clients = Clients(self._clients.addresses(), self._clients_number, self._incarnation)
            self._outbox.to_engine(engine.identity, clients)

    def _note(self, engine: EngineMember, what: str) -> None:
        self._outbox.add(Note(f"engine core {engine.hello.name} (index {engine.index}) {what}"))
