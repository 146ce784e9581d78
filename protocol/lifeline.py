"""A child process's line to its supervisor: one inherited stream socket, used in both directions.

Child to supervisor: one JSON object a line, about its start (`{"state": "loading", "progress": 0.4}`, ...).
Supervisor to child: nothing, ever; but when the supervisor dies, by whatever signal, the kernel closes its end and
the child reads end-of-file and exits at once. So no child outlives its supervisor, on Linux and on macOS. On
Linux PR_SET_PDEATHSIG does the same for a child whose Python is stuck; as it fires when the *thread* that started
the child ends, the supervisor starts children from a thread that lives as long as itself.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from typing import Literal

import msgspec

from protocol.exit_codes import ExitCode

LIFELINE_FD = "SHOAL_LIFELINE_FD"
"""Environment variable with the number of the inherited socket; set by the supervisor only."""

NOTIFY_TIMEOUT_S = 1
"""A supervisor that does not read (stopped, or stuck) must not stop its children: the notice is lost instead."""

_PR_SET_PDEATHSIG = 1


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child tells its supervisor."""

    state: Literal["loading", "ready", "serving", "draining", "failed"]
    """`ready`: it can do its own work. `serving`: it is an API server and has a model to serve. `failed`: it is about
    to end, `detail` says why."""
    progress: float = 0.0
    """Share of the model loaded, 0 to 1, while loading."""
    detail: str = ""


class Lifeline:
    """The child's end. Without a supervisor (a role started by hand) it does nothing."""

    def __init__(self, connection: socket.socket | None) -> None:
        self._connection = connection
        if connection is not None:
            # Not settimeout, which would bound the watcher's recv as well.
            seconds = struct.pack("@ll", NOTIFY_TIMEOUT_S, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    @classmethod
    def from_environment(cls) -> "Lifeline":
        """Takes over the inherited socket, if there is one, and starts to watch it. Call once, early."""
        number = os.environ.pop(LIFELINE_FD, "")
        if not number:
            return cls(None)
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        _die_with_parent()
        threading.Thread(target=_exit_at_eof, args=(connection,), name="lifeline", daemon=True).start()
        return cls(connection)

    def notify(self, notice: Notice) -> None:
        """Tells the supervisor. One that is gone (the watcher ends the process) or does not read is no error."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(msgspec.json.encode(notice) + b"\n")


def _exit_at_eof(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(64):
            pass
    os._exit(ExitCode.ORPHANED)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
