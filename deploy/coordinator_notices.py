"""Tells the coordinator which processes died, over a connection of the supervisor's own."""

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from protocol.codec import encode
from protocol.curve import CurveClient
from protocol.handshake_log import HandshakeLog
from protocol.identifiers import member_identity, new_incarnation
from protocol.messages import ProcessExited
from protocol.sockets import REFUSALS, ConnectionEvent, connection_event, open_member

logger = logging.getLogger("shoal.supervisor")

MAX_UNSENT = 256
"""Beyond this the oldest is forgotten: the coordinator then finds out by the missing heartbeat."""


class CoordinatorNotices:
    """Owner of the supervisor's connection to the coordinator."""

    def __init__(self, clients_address: str, curve: CurveClient | None = None) -> None:
        """Raises AddressError."""
        self._context = zmq.asyncio.Context()
        identity = member_identity(f"supervisor-{os.getpid()}", new_incarnation())
        self._socket, self._monitor = open_member(self._context, clients_address, identity, curve)
        self._handshake_log = HandshakeLog(f"the coordinator at {clients_address}", time.monotonic)
        self._unsent: deque[ProcessExited] = deque(maxlen=MAX_UNSENT)

    async def run(self, on_refused: Callable[[str], None]) -> None:
        """Sends what could not be sent before, each time the connection is made. Runs until cancelled.

        Calls back, with the reason, when the coordinator will not have this machine.
        """
        while True:
            event = connection_event(await self._monitor.recv_multipart())
            if event is ConnectionEvent.UP:
                await self._send_unsent()
            elif event is ConnectionEvent.BROKEN_OFF:
                self._handshake_log.broken_off()
            elif event in REFUSALS:
                on_refused(REFUSALS[event])

    async def tell_exited(self, name: str, pid: int, by_fault: bool) -> None:
        """Says that the process is gone; keeps it for later when the coordinator cannot be reached."""
        self._unsent.append(ProcessExited(name, pid, by_fault))
        await self._send_unsent()

    async def _send_unsent(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                await self._socket.send_multipart(encode(self._unsent[0]), flags=zmq.NOBLOCK)
                self._unsent.popleft()

    def close(self) -> None:
        """Closes the connection; what was not sent is dropped."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()
