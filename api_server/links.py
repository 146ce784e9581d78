"""The sockets of an API server: three links, received in tasks, each message handed to one function.

Nothing is decided here. The tasks block on their sockets; what a peer sends that the protocol does not allow is
counted and dropped; any other exception ends the task, and with it the process (see `main`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import zmq
import zmq.asyncio

from api_server.client_events import LinkDown, LinkUp
from protocol.codec import AT_CLIENT, AT_OUTPUTS, AT_SUBSCRIBER, Door, Frame, encode
from protocol.errors import ProtocolError
from protocol.messages import ClientToCoordinator, CoordinatorToAll, CoordinatorToClient, EngineToClient
from protocol.sockets import ConnectionEvent, SocketKind, connection_event, open_member, open_socket

SLICE_S = 0.002
"""A flood on one socket lets the other tasks run after so long: less than a token's time, more than a task switch."""

Incoming = CoordinatorToClient | EngineToClient | CoordinatorToAll | LinkUp | LinkDown
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
    ) -> None:
        """Opens everything. Raises AddressError."""
        self._outputs, self.output_address = open_socket(context, SocketKind.OUTPUTS_IN, output_address)
        self._cluster, _ = open_socket(context, SocketKind.SUBSCRIBER, cluster_address)
        self._coordinator, self._monitor = open_member(context, clients_address, identity)

    async def receive(self, handle: Handler, drop: Callable[[ProtocolError], None]) -> None:
        """Hands on what comes, until it is cancelled or `handle` raises. `drop` is told of malformed messages."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_connection(handle), name="connection")
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

    def pending_connection_events(self) -> list[LinkUp | LinkDown]:
        """What has happened to the connection and was not handed on yet: why a `send` failed, if that is it."""
        events: list[LinkUp | LinkDown] = []
        while True:
            received = cast("asyncio.Future[list[bytes]]", self._monitor.recv_multipart(zmq.NOBLOCK))
            try:
                events.append(_link_event(received.result()))
            except zmq.Again:
                return events

    def subscribe_anew(self) -> None:
        """Makes the coordinator publish a snapshot."""
        self._cluster.setsockopt(zmq.UNSUBSCRIBE, b"")
        self._cluster.setsockopt(zmq.SUBSCRIBE, b"")

    def close(self) -> None:
        """Closes all sockets; what is queued for the coordinator lingers as `protocol.sockets` says."""
        self._coordinator.disable_monitor()
        for socket in (self._monitor, self._coordinator, self._cluster, self._outputs):
            socket.close()

    async def _watch_connection(self, handle: Handler) -> None:
        while True:
            handle(_link_event(await self._monitor.recv_multipart()), ())


def _link_event(frames: list[bytes]) -> LinkUp | LinkDown:
    return LinkUp() if connection_event(frames) is ConnectionEvent.UP else LinkDown()


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
