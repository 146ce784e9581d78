"""The supervisor's control socket: takes requests of this user's `shoal` commands, hands back what comes of them.

The socket is in the run directory, which only its user may enter; the peer's user is asked for all the same, in case
somebody widened the directory's mode.
"""

import asyncio
import itertools
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from deploy.control_messages import ControlAnswer, ControlRequest, Done

logger = logging.getLogger("shoal.supervisor")

REQUEST_TIMEOUT_S = 5.0
"""From the connection to the end of the request's line."""
MAX_REQUEST_BYTES = 4096
MAX_CONNECTIONS = 16

_decoder = msgspec.json.Decoder(ControlRequest)
_encoder = msgspec.json.Encoder()


class ControlServer:
    """Owner of the socket and of its connections."""

    def __init__(self, on_request: Callable[[ControlRequest, int], None]) -> None:
        """`on_request` gets a request and the ticket under which its answers are to be given."""
        self._on_request = on_request
        self._tickets = itertools.count()
        self._answers: dict[int, asyncio.Queue[ControlAnswer]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        """Listens. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_REQUEST_BYTES)

    def answer(self, ticket: int, answer: ControlAnswer) -> None:
        """Passes it on; nothing happens when whoever asked is gone."""
        if ticket in self._answers:
            self._answers[ticket].put_nowait(answer)

    def close(self) -> None:
        """Listens no more; what has been answered is written by the connections' own tasks."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ticket = next(self._tickets)
        try:
            await self._converse(ticket, reader, writer)
        except OSError as error:  # the other end is gone, and what it asked for goes on
            logger.debug("control connection lost: %s", error)
        finally:
            self._answers.pop(ticket, None)
            writer.close()

    async def _converse(self, ticket: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        if (user := _peer_user(peer)) != os.getuid():
            logger.warning("refused a control connection of user %s", user)
            return
        answers: asyncio.Queue[ControlAnswer] = asyncio.Queue()
        if len(self._answers) >= MAX_CONNECTIONS:
            answers.put_nowait(Done(False, "too many control connections"))
        else:
            self._answers[ticket] = answers
            await self._read_request(ticket, reader)
        while True:
            answer = await answers.get()
            writer.write(_encoder.encode(answer) + b"\n")
            await writer.drain()
            if isinstance(answer, Done):
                return

    async def _read_request(self, ticket: int, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = _decoder.decode(await reader.readline())
        except (TimeoutError, ValueError) as error:  # a line that is too long, or that msgspec cannot read
            self.answer(ticket, Done(False, f"not a request: {error}"))
        else:
            self._on_request(request, ticket)


def _peer_user(peer: socket.socket) -> int:
    """The user id of the process at the other end."""
    if sys.platform == "linux":
        user = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    else:  # macOS: struct xucred of LOCAL_PEERCRED (sys/un.h, sys/ucred.h) begins with a version and the user id
        user = struct.unpack_from("II", peer.getsockopt(0, 1, 76))[1]
    return int(user)
