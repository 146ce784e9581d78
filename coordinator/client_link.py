"""What API servers (and the supervisor) say, and what becomes of it."""

from typing import assert_never

import msgspec

from coordinator.clients import MAX_CLIENTS, ClientMember
from coordinator.engine_link import EngineLink
from coordinator.events import Identity, Link, Note
from coordinator.greeting import is_genuine, is_late, reason_to_refuse
from coordinator.parts import Parts
from coordinator.waiting_room import Submission
from protocol.codec import TOKEN_ID_BYTES, Received
from protocol.errors import ProtocolError
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Cleared,
    ClientHello,
    ClientToCoordinator,
    ClientWelcome,
    EngineCoreRequest,
    EngineLost,
    EngineRun,
    GetCard,
    Heartbeat,
    ProcessExited,
    Refused,
    RequestEnded,
    RequestsLost,
)
from protocol.prefix_hash import is_fit_for


class ClientLink:
    """Lets API servers join and leave; hands their requests to the dispatcher."""

    def __init__(self, parts: Parts, engine_link: EngineLink) -> None:
        self._engine_link = engine_link
        self._incarnation = parts.incarnation
        self._clients = parts.clients
        self._engines = parts.engines
        self._dispatcher = parts.dispatcher
        self._cards = parts.cards
        self._liveness = parts.liveness[Link.CLIENTS]
        self._settling = parts.settling
        self._publisher = parts.publisher
        self._outbox = parts.outbox

    def handle(self, identity: Identity, received: Received[ClientToCoordinator], now_s: float) -> None:
        """Takes a message. Raises ProtocolError, with nothing changed, when its sender must not send it."""
        message = received.message
        match message:
            case ClientHello():
                self._greeted(identity, message, now_s)
            case ProcessExited():  # the supervisor says no Hello
                self._exited(message.name, message.pid)
                self._engine_link.exited(message)
            case _:
                client = self._clients.find(identity) or self._taken_back(identity, now_s)
                if client is None:
                    raise ProtocolError(f"clients: {type(message).__name__} before Hello")
                self._liveness.heard(identity, now_s)
                self._handle_member(client, message, received, now_s)

    def _handle_member(
        self,
        client: ClientMember,
        message: EngineCoreRequest | Abort | Cleared | GetCard | Heartbeat | RequestEnded,
        received: Received[ClientToCoordinator],
        now_s: float,
    ) -> None:
        match message:
            case EngineCoreRequest() if 0 <= message.client_index == client.former_index:
                pass  # on its way when we took it back: our Welcome makes it come again, under the new index
            case EngineCoreRequest():
                _check(client, message, received)
                self._dispatcher.submit(Submission(client, message, received.frames), now_s)
            case Abort():
                self._dispatcher.abort(client, message.keys)
            case Cleared(keys):
                self._dispatcher.cleared(keys)
            case GetCard():
                expected = self._engine_link.expects_card(message.card_hash)
                self._cards.ask(client.identity, message.card_hash, expected)
            case Heartbeat():
                self._outbox.to_client(client.identity, Heartbeat())
            case RequestEnded():
                self._dispatcher.ended(client, message, now_s)
            case _:
                assert_never(message)

    def lose(self, identity: Identity, reason: str, may_return: bool = True, is_silent: bool = False) -> None:
        """Gives an API server up; the engine cores drop its requests. No effect when there is none of this identity.

        One that is silent is left alone: it may go on, and its callers with it.
        """
        client = self._clients.find(identity)
        if client is None:
            return
        self._dispatcher.client_gone(client)
        self._clients.leave(client, may_return)
        self._liveness.forget(identity)
        self._cards.forget_client(identity)
        self._engine_link.send_clients()
        self._publisher.membership_changed()
        self._note(client, f"lost: {reason}")

    def settled(self) -> None:
        """The settling time is over: tells of the engine cores that have not come back."""
        for client in self._clients:
            self._tell_lost(
                client, [run for run in client.hello.engines if self._engines.of_run(run.incarnation) is None]
            )

    def _exited(self, name: str, pid: int) -> None:
        client = self._clients.named(name)
        if client is not None and client.hello.pid == pid:
            self.lose(client.identity, "its process has exited", may_return=False)

    def _greeted(self, identity: Identity, hello: ClientHello, now_s: float) -> None:
        if not is_genuine(identity, hello):
            raise ProtocolError("clients: a Hello under another's identity")
        others = len(self._clients) - (self._clients.named(hello.name) is not None)
        refusal = reason_to_refuse(hello, others, MAX_CLIENTS, self._clients.hellos())
        if refusal is not None:
            self._outbox.to_client(identity, Refused(refusal))
            self._outbox.add(Note(f"an API server is refused: {refusal}"))
            return
        known = self._clients.find(identity) or self._clients.lost(identity)
        if is_late(hello, None if known is None else known.hello):
            return
        is_new = self._clients.find(identity) is None
        if is_new:
            self._displace(hello.name)
        client = self._clients.join(identity, hello, self._may_claim(hello))
        self._clients.forget_lost(hello.name)
        self._welcome(client)
        if client.index == hello.client_index:  # otherwise it knows that it has lost everything
            self._tell_lost(client, [run for run in hello.engines if not self._goes_on(run)])
            if is_new:
                self._tell_lost_requests(client)
        self._liveness.heard(identity, now_s)
        self._publisher.membership_changed()
        self._note(client, f"said Hello, pid {hello.pid}")
        self._dispatcher.retry_waiting(now_s)

    def _may_claim(self, hello: ClientHello) -> bool:
        """Whether its streams may be whole: an earlier coordinator may have given it up, which engine cores know."""
        engines = [self._engines.of_run(run.incarnation) for run in hello.engines]
        is_cut_off = any(engine is not None and hello.client_index not in engine.hello.clients for engine in engines)
        return self._settling.is_active and not is_cut_off

    def _goes_on(self, run: EngineRun) -> bool:
        """Whether what an engine core has for an API server that says Hello can still reach it."""
        engine = self._engines.of_run(run.incarnation)
        return self._settling.is_active if engine is None else not engine.was_given_up

    def _tell_lost(self, client: ClientMember, runs: list[EngineRun]) -> None:
        for run in dict.fromkeys(runs):
            reason = "the engine core or its requests were lost during a reconnect"
            lost = EngineLost(run.engine_index, run.incarnation, reason)
            self._outbox.to_client(client.identity, lost)

    def _tell_lost_requests(self, client: ClientMember) -> None:
        for run in client.hello.engines:
            engine = self._engines.of_run(run.incarnation)
            if engine is not None and (keys := self._dispatcher.lost_requests(client, engine)):
                self._outbox.to_client(client.identity, RequestsLost(keys))

    def _displace(self, name: str) -> None:
        older = self._clients.named(name)
        if older is not None:
            self.lose(older.identity, "replaced by a newer process of the same name", may_return=False)
            self._outbox.to_client(older.identity, Refused(f"a newer process has taken the name {name}"))

    def _taken_back(self, identity: Identity, now_s: float) -> ClientMember | None:
        lost = self._clients.lost(identity)
        if lost is not None:
            self._greeted(identity, msgspec.structs.replace(lost.hello, engines=[]), now_s)
        return self._clients.find(identity)

    def _welcome(self, client: ClientMember) -> None:
        for engine in self._engines:
            engine.client_joined(client.index)
        self._engine_link.send_clients()
        welcome = ClientWelcome(PROTOCOL_VERSION, self._incarnation, client.index, client.hello.greeting)
        self._outbox.to_client(client.identity, welcome)

    def _note(self, client: ClientMember, what: str) -> None:
        self._outbox.add(Note(f"API server {client.hello.name} (index {client.index}) {what}"))


def _check(client: ClientMember, request: EngineCoreRequest, received: Received[ClientToCoordinator]) -> None:
    if request.client_index != client.index:
        raise ProtocolError("clients: a request under another's client index")
    buffers = received.buffers
    if not 1 <= len(buffers) <= 2 or len(buffers[0]) != TOKEN_ID_BYTES * request.num_prompt_tokens:
        raise ProtocolError("clients: a request whose prompt is not as long as it says")
    if len(buffers) == 2 and not is_fit_for(buffers[1], request.num_prompt_tokens):
        raise ProtocolError("clients: a request with more block keys than its prompt has, or with a part of one")
