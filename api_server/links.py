"""The sockets of an API server: three links, received in tasks, each message handed to one function; and the door.

Nothing is decided here. The tasks block on their sockets; what a peer sends that the protocol does not allow is
counted and dropped; any other exception ends the task, and with it the process (see `main`).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never, cast

import zmq
import zmq.asyncio

from api_server.client_events import LinkDown, LinkRefused, LinkUp
from protocol.codec import AT_CLIENT, AT_OUTPUTS, AT_SUBSCRIBER, Door, Frame, encode
from protocol.curve import Keyring
from protocol.doorkeeper import AllowedKeys, Doorkeeper
from protocol.errors import ProtocolError
from protocol.handshake_log import HandshakeLog
from protocol.messages import ClientToCoordinator, CoordinatorToAll, CoordinatorToClient, EngineToClient
from protocol.sockets import (
    REFUSALS,
    ConnectionEvent,
    SocketKind,
    connection_event,
    open_door,
    open_member,
    open_socket,
)

NO_KEYS = Keyring()
SLICE_S = 0.002
"""A flood on one socket lets the other tasks run after so long: less than a token's time, more than a task switch."""

LinkEvent = LinkUp | LinkDown | LinkRefused
Incoming = CoordinatorToClient | EngineToClient | CoordinatorToAll | LinkEvent
Handler = Callable[[Incoming, Sequence[Frame]], None]
"""Takes a message and the buffers behind it."""


class Links:
    """Owns the sockets."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        clients_address: str,
        cluster_address: str,
        output_address: str,
        identity: bytes,
        keyring: Keyring = NO_KEYS,
        allowed: AllowedKeys | None = None,
    ) -> None:
        """Opens everything. `allowed` says which engine cores may connect to an encrypted output address.

        Raises AddressError.
        """
        self._door = None if allowed is None else open_door(context)
        self._doorkeeper = None if allowed is None else Doorkeeper(allowed, time.monotonic)
        self._handshake_log = HandshakeLog(f"the coordinator at {clients_address}", time.monotonic)
        server = keyring.for_server(output_address)
        self._outputs, self.output_address = open_socket(context, SocketKind.OUTPUTS_IN, output_address, server)
        cluster = keyring.for_coordinator(cluster_address)
        self._cluster, _ = open_socket(context, SocketKind.SUBSCRIBER, cluster_address, cluster)
        clients = keyring.for_coordinator(clients_address)
        self._coordinator, self._monitor = open_member(context, clients_address, identity, clients)

    async def receive(self, handle: Handler, drop: Callable[[ProtocolError], None]) -> None:
        """Hands on what comes, until it is cancelled or `handle` raises. `drop` is told of malformed messages."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_connection(handle), name="connection")
            if self._door is not None and self._doorkeeper is not None:
                tasks.create_task(_answer_door(self._door, self._doorkeeper), name="door")
            tasks.create_task(_receive(self._coordinator, AT_CLIENT, handle, drop), name="coordinator")
            tasks.create_task(_receive(self._outputs, AT_OUTPUTS, handle, drop), name="outputs")
            tasks.create_task(_receive(self._cluster, AT_SUBSCRIBER, handle, drop), name="cluster")

    def send(self, message: ClientToCoordinator, buffers: Sequence[Frame] = ()) -> bool:
        """Sends to the coordinator; false when there is no connection or its queue is full."""
        frames = encode(message, *buffers)
        if self._try_to_send(frames):
            return True
        # A connection that was just made, and that the monitor has reported, may not have reached the socket: libzmq
        # looks at such news at most once a millisecond when it sends, but always when it is asked for events.
        self._coordinator.getsockopt(zmq.EVENTS)
        return self._try_to_send(frames)

    def _try_to_send(self, frames: list[Frame]) -> bool:
        sent = cast("asyncio.Future[None]", self._coordinator.send_multipart(frames, zmq.NOBLOCK))
        try:
            sent.result()  # with NOBLOCK it is done at once
        except zmq.Again:
            return False
        return True

    def pending_connection_events(self) -> list[LinkEvent]:
        """What has happened to the connection and was not handed on yet: why a `send` failed, if that is it."""
        events: list[LinkEvent] = []
        while True:
            received = cast("asyncio.Future[list[bytes]]", self._monitor.recv_multipart(zmq.NOBLOCK))
            try:
                events += self._link_events(received.result())
            except zmq.Again:
                return events

    def subscribe_anew(self) -> None:
        """Makes the coordinator publish a snapshot."""
        self._cluster.setsockopt(zmq.UNSUBSCRIBE, b"")
        self._cluster.setsockopt(zmq.SUBSCRIBE, b"")

    def close(self) -> None:
        """Closes all sockets; what is queued for the coordinator lingers as `protocol.sockets` says."""
        self._coordinator.disable_monitor()
        for socket in (self._monitor, self._coordinator, self._cluster, self._outputs, self._door):
            if socket is not None:
                socket.close()

    async def _watch_connection(self, handle: Handler) -> None:
        while True:
            for event in self._link_events(await self._monitor.recv_multipart()):
                handle(event, ())

    def _link_events(self, frames: list[bytes]) -> list[LinkEvent]:
        """The event of a monitor's message; none when it only goes into the log."""
        match event := connection_event(frames):
            case ConnectionEvent.UP:
                return [LinkUp()]
            case ConnectionEvent.DOWN:
                return [LinkDown()]
            case ConnectionEvent.BROKEN_OFF:
                self._handshake_log.broken_off()
                return []
            case ConnectionEvent.KEY_REFUSED | ConnectionEvent.MISMATCH:
                return [LinkRefused(REFUSALS[event])]
            case _:
                assert_never(event)


async def _answer_door(door: zmq.asyncio.Socket, doorkeeper: Doorkeeper) -> None:
    while True:
        await door.send_multipart(doorkeeper.reply(await door.recv_multipart()))


async def _receive(
    socket: zmq.asyncio.Socket, door: Door[Any], handle: Handler, drop: Callable[[ProtocolError], None]
) -> None:
    loop = asyncio.get_running_loop()
    slice_ends_s = loop.time() + SLICE_S
    while True:
        frames = await socket.recv_multipart()
        try:
            received = door.decode(frames)
        except ProtocolError as error:
            drop(error)
        else:
            handle(received.message, received.buffers)
        if loop.time() >= slice_ends_s:  # awaiting a socket that has more does not give way by itself
            await asyncio.sleep(0)
            slice_ends_s = loop.time() + SLICE_S
