"""The coordinator's loop: receives, decodes, lets the core decide, encodes, sends. No policy in here.

One thread waits in one poller, without a timeout when no deadline is near: an idle coordinator is not woken but by
the heartbeats of its members.
"""

import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

import msgspec
import zmq

from coordinator.cluster import ClusterState
from coordinator.events import (
    Command,
    Drop,
    Event,
    Forward,
    FromClient,
    FromEngine,
    Garbage,
    Identity,
    Link,
    Note,
    Publish,
    Send,
    Subscribed,
    TurnEnded,
    Unreachable,
)
from protocol.codec import AT_COORDINATOR_FROM_CLIENT, AT_COORDINATOR_FROM_ENGINE, Frame, encode
from protocol.doorkeeper import Doorkeeper
from protocol.errors import ProtocolError
from protocol.malformed import MalformedLog

logger = logging.getLogger("shoal.coordinator")

BATCH = 256
"""Messages taken from one socket before the others have their turn."""

ZmqSocket: TypeAlias = "zmq.Socket[bytes]"


class Door(msgspec.Struct, frozen=True):
    """Where libzmq asks, in a handshake, whether a key is allowed."""

    socket: ZmqSocket
    keeper: Doorkeeper

    def answer(self) -> None:
        """Answers the question that has come."""
        self.socket.send_multipart(self.keeper.reply(self.socket.recv_multipart()))


class Sockets(msgspec.Struct, frozen=True):
    """What the loop listens to and speaks through; opened and closed by its maker."""

    clients: ZmqSocket
    engines: ZmqSocket
    cluster: ZmqSocket
    stop: socket.socket
    """Readable when the loop shall end."""
    door: Door | None = None
    """None when nothing is encrypted."""


class CoordinatorLoop:
    """Moves bytes between the sockets and the core."""

    def __init__(
        self, sockets: Sockets, state: ClusterState, malformed: MalformedLog, clock: Callable[[], float]
    ) -> None:
        self._sockets = sockets
        self._state = state
        self._malformed = malformed
        self._clock = clock
        self._router = {Link.CLIENTS: sockets.clients, Link.ENGINES: sockets.engines}
        self._unreachable: deque[Unreachable] = deque()
        self._poller = zmq.Poller()
        for each in (sockets.clients, sockets.engines, sockets.cluster):
            self._poller.register(each, zmq.POLLIN)
        self._poller.register(sockets.stop.fileno(), zmq.POLLIN)
        if sockets.door is not None:
            self._poller.register(sockets.door.socket, zmq.POLLIN)

    def run(self) -> None:
        """Runs until the stop socket is readable."""
        drained = True
        while True:
            ready = dict(self._poller.poll(self._timeout_ms() if drained else 0))
            if self._sockets.stop.fileno() in ready:
                return
            if self._sockets.door is not None and self._sockets.door.socket in ready:
                self._sockets.door.answer()
            drained = self._receive_all()
            self._handle(TurnEnded(drained))

    def _timeout_ms(self) -> int | None:
        deadline_s = self._state.next_deadline_s()
        if deadline_s == math.inf:
            return None
        now_s = self._clock()
        return 0 if deadline_s <= now_s else math.ceil((deadline_s - now_s) * 1000)

    def _receive_all(self) -> bool:
        """Handles what has come; returns whether nothing was left behind."""
        drained = [
            self._receive(self._sockets.engines, self._from_engine),
            self._receive(self._sockets.clients, self._from_client),
            self._receive(self._sockets.cluster, self._from_subscriber),
        ]
        return all(drained)

    def _receive(self, source: ZmqSocket, take: Callable[[list[bytes]], Event | None]) -> bool:
        for _ in range(BATCH):
            try:
                frames = source.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            event = take(frames)
            if event is not None:
                self._handle(event)
        return False

    def _from_client(self, frames: list[bytes]) -> Event:
        identity = Identity(frames[0])
        try:
            return FromClient(identity, AT_COORDINATOR_FROM_CLIENT.decode(frames[1:]))
        except ProtocolError as error:
            return Garbage(Link.CLIENTS, identity, str(error))

    def _from_engine(self, frames: list[bytes]) -> Event:
        identity = Identity(frames[0])
        try:
            return FromEngine(identity, AT_COORDINATOR_FROM_ENGINE.decode(frames[1:]))
        except ProtocolError as error:
            return Garbage(Link.ENGINES, identity, str(error))

    def _from_subscriber(self, frames: list[bytes]) -> Event | None:
        """An XPUB receives 1 and the topic for a subscription, 0 and the topic for its end (ZeroMQ RFC 29)."""
        match frames[0][:1]:
            case b"\x01":
                return Subscribed()
            case b"\x00":
                return None  # unsubscribed
            case _:
                return Garbage(Link.CLUSTER, Identity(b""), "cluster: a message from a subscriber")

    def _handle(self, event: Event) -> None:
        """Does all that an event leads to, the failures of sends included."""
        self._execute(self._state.handle(event, self._clock()))
        while self._unreachable:
            self._execute(self._state.handle(self._unreachable.popleft(), self._clock()))

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(link, identity, message, buffers):
                    self._send(link, identity, encode(message, *buffers))
                case Forward(link, identity, frames):
                    self._send(link, identity, frames)
                case Publish(message):
                    self._sockets.cluster.send_multipart(encode(message))  # an XPUB never blocks, it drops
                case Drop(identity, reason):
                    self._malformed.drop(ProtocolError(reason), identity)
                case Note(text):
                    logger.info("%s", text)
                case _:
                    assert_never(command)

    def _send(self, link: Link, identity: Identity, frames: Sequence[Frame]) -> None:
        try:
            self._router[link].send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.Again:
            self._unreachable.append(Unreachable(link, identity, "it has stopped reading"))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unreachable.append(Unreachable(link, identity, "its connection is gone"))
