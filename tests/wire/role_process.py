"""A role as a real process (`shoal ROLE FLAGS`), and the supervisor's end of its lifeline."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from protocol.lifeline import LIFELINE_FD, Notice

LIMIT_S = 20.0
"""A test that waits for longer has failed."""


class RoleProcess:
    """Started by its constructor."""

    def __init__(self, role: str, *flags: str) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", role, *flags],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, LIFELINE_FD: str(theirs.fileno()), "HF_HUB_OFFLINE": "1"},
            )
        self._lifeline.settimeout(LIMIT_S)
        self._notices = self._lifeline.makefile("rb")

    def notice(self) -> Notice:
        """The next notice."""
        line = self._notices.readline()
        assert line, "the lifeline ended"
        return msgspec.json.decode(line, type=Notice)

    def expect_notice(self, state: str) -> Notice:
        """The next notice of this state; those before it are passed over."""
        while (notice := self.notice()).state != state:
            pass
        return notice

    def cut_lifeline(self) -> None:
        """What the death of its supervisor looks like."""
        self._notices.close()
        self._lifeline.close()

    def terminate(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Asks it to end."""
        self.process.send_signal(signal_number)

    def wait(self, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Exit code and log."""
        _, log = self.process.communicate(timeout=limit_s)
        return self.process.returncode, log

    def cpu_s(self) -> float:
        """User and system time so far (proc(5))."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wake_ups(self) -> int:
        """Times that a thread of it went to sleep so far (proc(5))."""
        statuses = [path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/status")]
        return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[0]) for text in statuses)

    def close(self) -> None:
        """Kills it if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.cut_lifeline()


@contextlib.contextmanager
def role_process(role: str, *flags: str) -> Iterator[RoleProcess]:
    """A process that is killed at the end if it has not ended by then."""
    process = RoleProcess(role, *flags)
    try:
        yield process
    finally:
        process.close()
