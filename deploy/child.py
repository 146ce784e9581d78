"""One running process of the cluster: started in a session of its own, with a lifeline to this supervisor."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable

import msgspec

from deploy.launch import ProcessSpec
from protocol.lifeline import LIFELINE_FD, Notice

logger = logging.getLogger("shoal.supervisor")

LAST_NOTICES_S = 1.0
"""For what a process wrote just before its end: more than it takes to read, also on a busy machine."""
_STANDARD_ERROR = 2
_notice_decoder = msgspec.json.Decoder(Notice)


class Child:
    """A process and the supervisor's end of its lifeline. Make one with `start_child`."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
        self.spec = spec
        self.pid = process.pid
        self._process = process
        self._lifeline = lifeline

    async def wait(self, on_notice: Callable[[Notice], None]) -> int:
        """Hands on the process's notices until it is dead; returns its exit code (minus the signal's number)."""
        notices = asyncio.create_task(self._read_notices(on_notice), name=f"notices of {self.spec.name}")
        try:
            code = await self._process.wait()
            await asyncio.wait((notices,), timeout=LAST_NOTICES_S)
            return code
        finally:
            notices.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await notices

    async def _read_notices(self, on_notice: Callable[[Notice], None]) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._lifeline)
        try:
            while line := await self._next_line(reader):
                try:
                    on_notice(_notice_decoder.decode(line))
                except msgspec.MsgspecError as error:
                    logger.warning("%s sent a notice that cannot be read: %s", self.spec.name, error)
        finally:
            writer.close()

    async def _next_line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readline()
        except (OSError, ValueError) as error:  # ValueError: a line without an end
            logger.warning("no notices of %s can be read any more: %s", self.spec.name, error)
            return b""

    def terminate(self) -> None:
        """SIGTERM: the process drains and exits."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the process and whatever it started (its process group)."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def start_child(spec: ProcessSpec) -> Child:
    """Starts the process. Raises OSError when the system cannot.

    A session of its own keeps a terminal's Ctrl-C away from it: only the supervisor gets that, and drains in order.
    It writes to the supervisor's standard error directly: nothing is piped through here.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,
                env={**spec.environment, LIFELINE_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(), *spec.inherited_fds),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return Child(spec, process, ours)
