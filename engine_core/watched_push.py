"""A PUSH socket to an API server over TCP that notices when nobody takes what it is given.

ZeroMQ queues for a connection that is not there, as it should while an API server restarts or a packet is lost. But an
API server that does not allow this machine's key, or to which the network has no way though both reach the
coordinator, would never get the outputs of its requests: the coordinator must hear of it, and route around.
"""

import time
from collections.abc import Callable

import zmq

from protocol.codec import Frame
from protocol.errors import AddressError
from protocol.heartbeats import SILENCE_S
from protocol.sockets import REFUSALS, ConnectionEvent, connection_event

UNREACHABLE_AFTER_S = SILENCE_S
"""Without a connection. It must have been noticed (3 s at most) and have lasted so long before the last message that a
silent stream sends by itself (engine_core.output_streams: 7 s after the one before), or nobody would ever look again.
"""


class WatchedPush:
    """Owner of the socket and of its connection's monitor."""

    def __init__(
        self, opened: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` only goes forward, in seconds."""
        self._socket = opened
        self._monitor = monitor
        self._clock = clock
        self._down_since_s: float | None = clock()
        """None while there is a connection."""

    def send_multipart(self, msg_parts: list[Frame], flags: int = 0) -> object:
        """Raises zmq.Again when the queue is full, AddressError when nobody will take what is in it."""
        self._look_at_connection()
        return self._socket.send_multipart(msg_parts, flags)

    def close(self, linger: int | None = None) -> None:
        """After `linger` milliseconds what is not sent is dropped; None: as the socket was configured."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger)

    def _look_at_connection(self) -> None:
        while self._monitor.poll(0):
            self._connection_changed(connection_event(self._monitor.recv_multipart()))
        if self._down_since_s is not None and self._clock() - self._down_since_s >= UNREACHABLE_AFTER_S:
            raise AddressError(f"no connection for {UNREACHABLE_AFTER_S:.0f} s")

    def _connection_changed(self, event: ConnectionEvent) -> None:
        if event in REFUSALS:
            raise AddressError(REFUSALS[event])
        if event is ConnectionEvent.UP:
            self._down_since_s = None
        elif self._down_since_s is None:
            self._down_since_s = self._clock()
