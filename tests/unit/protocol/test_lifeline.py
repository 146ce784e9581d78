"""The line between a child process and its supervisor, with real processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import msgspec
import pytest

from protocol.exit_codes import ExitCode
from protocol.lifeline import LIFELINE_FD, Lifeline, Notice

PATIENCE_S = 10.0
CHILD = """
import os, signal
from protocol.lifeline import LIFELINE_FD, Lifeline, Notice
lifeline = Lifeline.from_environment()
assert LIFELINE_FD not in os.environ
lifeline.notify(Notice("loading", 0.5, "weights"))
lifeline.notify(Notice("ready"))
signal.pause()
"""
PARENT = """
import os, socket, subprocess, sys
from protocol.lifeline import LIFELINE_FD
ours, theirs = socket.socketpair()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], pass_fds=[theirs.fileno()],
                         env=os.environ | {LIFELINE_FD: str(theirs.fileno())})
theirs.close()
notices = ours.makefile("rb")
notices.readline(), notices.readline()
print(child.pid, flush=True)
child.wait()
"""


def start_child(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    environment = os.environ | {LIFELINE_FD: str(theirs.fileno())}
    return subprocess.Popen([sys.executable, "-c", CHILD], pass_fds=[theirs.fileno()], env=environment)


def test_the_supervisor_hears_of_the_childs_start_and_its_end_ends_the_child() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with theirs:
        child = start_child(theirs)
    with ours, ours.makefile("rb") as notices:
        decode = msgspec.json.Decoder(Notice).decode
        assert decode(notices.readline()) == Notice("loading", 0.5, "weights")
        assert decode(notices.readline()) == Notice("ready")
    assert child.wait(PATIENCE_S) == ExitCode.ORPHANED


def test_a_child_does_not_outlive_a_supervisor_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip().isdigit(), "the child's process id"
    parent.send_signal(signal.SIGKILL)
    assert parent.wait(PATIENCE_S) == -signal.SIGKILL
    assert parent.stdout.read() == b"", "its other end is closed when the child, which inherited it, is gone too"
    parent.stdout.close()


def test_a_role_started_by_hand_has_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIFELINE_FD, raising=False)
    Lifeline.from_environment().notify(Notice("ready"))


def test_a_supervisor_that_is_gone_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        Lifeline(theirs).notify(Notice("ready"))


def test_a_supervisor_that_does_not_read_holds_nobody_up() -> None:
    ours, theirs = socket.socketpair()
    told = threading.Event()

    def fill() -> None:
        theirs.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while True:
                theirs.send(b"x" * 100)
        theirs.settimeout(None)
        Lifeline(theirs).notify(Notice("draining"))
        told.set()

    with ours, theirs:
        threading.Thread(target=fill, daemon=True).start()
        assert told.wait(PATIENCE_S)
