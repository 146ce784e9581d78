"""Hears from the coordinator who is there and who fell silent: it ejects them, only the supervisor can end them."""

from collections.abc import Callable

import zmq
import zmq.asyncio

from protocol.codec import AT_SUBSCRIBER, SNAPSHOT_TOPIC
from protocol.curve import CurveClient
from protocol.errors import ProtocolError
from protocol.malformed import MalformedLog
from protocol.messages import ClusterSnapshot
from protocol.sockets import SocketKind, open_socket


class SilenceWatch:
    """Owner of the supervisor's subscription to the cluster's state, of which it takes the snapshots only.

    Each snapshot names all that are silent, and there is one for each new subscription: nothing is missed when the
    coordinator, or a message, is lost.
    """

    def __init__(self, cluster_address: str, clock: Callable[[], float], curve: CurveClient | None = None) -> None:
        """Raises AddressError. `clock` only goes forward, in seconds."""
        self._context = zmq.asyncio.Context()
        self._socket, _ = open_socket(self._context, SocketKind.SUBSCRIBER, cluster_address, curve)
        self._socket.setsockopt(zmq.SUBSCRIBE, SNAPSHOT_TOPIC)
        self._socket.setsockopt(zmq.UNSUBSCRIBE, b"")
        self._malformed = MalformedLog(clock)

    async def run(self, on_snapshot: Callable[[ClusterSnapshot], None]) -> None:
        """Calls back for each snapshot, until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                message = AT_SUBSCRIBER.decode(frames).message
            except ProtocolError as error:
                self._malformed.drop(error)
                continue
            if isinstance(message, ClusterSnapshot):
                on_snapshot(message)

    def subscribe_anew(self) -> None:
        """Makes the coordinator, if it is there, publish a snapshot."""
        self._socket.setsockopt(zmq.UNSUBSCRIBE, SNAPSHOT_TOPIC)
        self._socket.setsockopt(zmq.SUBSCRIBE, SNAPSHOT_TOPIC)

    def close(self) -> None:
        """Ends the subscription."""
        self._socket.close(0)
        self._context.term()
