"""The coordinator as a process: start, stop, kill, idleness."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from running_coordinator import WireClient, WireEngine, config_in

from coordinator.config import CoordinatorConfig
from protocol.exit_codes import ExitCode
from protocol.lifeline import LIFELINE_FD, Notice
from protocol.messages import Accepted

Context = zmq.Context[zmq.Socket[bytes]]
PROGRAM = """
import sys, msgspec
from coordinator.config import CoordinatorConfig
from coordinator.main import run
from protocol.lifeline import Lifeline
sys.exit(run(msgspec.json.decode(sys.argv[1], type=CoordinatorConfig), Lifeline.from_environment()))
"""
PATIENCE_S = 10.0
STARTED_S = 1.5
"""Promise of the coordinator's specification; the process is ready in 0.2 s on a free 2-core machine."""
RSS_LIMIT_BYTES = 50 * 1024 * 1024
IDLE_S = 2.0
IDLE_CPU_S = 0.02


class Running:
    """A coordinator's process and the supervisor's end of its lifeline."""

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: socket.socket) -> None:
        self.process = process
        self._lifeline = lifeline
        self._notices = lifeline.makefile("rb")

    def notice(self) -> Notice:
        return msgspec.json.decode(self._notices.readline(), type=Notice)

    def cut_lifeline(self) -> None:
        self._notices.close()
        self._lifeline.close()


@contextlib.contextmanager
def started(config: CoordinatorConfig) -> Iterator[Running]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode()],
            pass_fds=[theirs.fileno()],
            env=os.environ | {LIFELINE_FD: str(theirs.fileno())},
        )
        theirs.close()
        try:
            yield Running(process, ours)
        finally:
            process.kill()
            process.wait()


def test_it_says_when_it_is_ready_and_ends_at_once_when_told(directory: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with started(config_in(directory)) as running:
            assert running.notice() == Notice("ready")
            assert (psutil.Process(running.process.pid).memory_info().rss) < RSS_LIMIT_BYTES
            running.process.send_signal(number)
            assert running.notice() == Notice("draining")
            assert running.process.wait(timeout=1.0) == 0


def test_its_successor_binds_although_it_was_killed(directory: Path, context: Context) -> None:
    config = config_in(directory)
    engine, client = WireEngine(context, config), WireClient(context, config)
    for _ in range(2):
        with started(config) as running:
            running.notice()
            engine.join()
            client.join()
            client.submit("r1")
            client.expect(Accepted)
            running.process.kill()
            running.process.wait()
    assert (directory / "engines").is_socket(), "the killed one has left its sockets behind"


def test_it_does_not_outlive_its_supervisor(directory: Path) -> None:
    with started(config_in(directory)) as running:
        running.notice()
        running.cut_lifeline()
        assert running.process.wait(timeout=PATIENCE_S) != 0


def test_it_starts_fast_and_costs_nothing_when_idle(directory: Path) -> None:
    with started(config_in(directory)) as running:
        running.notice()
        process = psutil.Process(running.process.pid)
        used = process.cpu_times()
        assert used.user + used.system < STARTED_S
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(timeout=IDLE_S)
        later = process.cpu_times()
        assert later.user + later.system - used.user - used.system <= IDLE_CPU_S


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5555", "ipc:///no/such/directory/engines"])
def test_an_address_that_cannot_be_used_is_named_and_restarts_would_not_help(
    address: str, directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = msgspec.structs.replace(config_in(directory), engines_address=address)
    with started(config) as running:
        assert running.process.wait(timeout=PATIENCE_S) == ExitCode.HOPELESS
    log = capfd.readouterr().err
    assert address in log
    assert "Traceback" not in log
