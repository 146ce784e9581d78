"""The coordinator as a process: start, stop, kill, idleness."""

import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from role_process import RoleProcess, role_process
from running_coordinator import WireClient, WireEngine, config_in

from coordinator.config import CoordinatorConfig
from protocol.exit_codes import ExitCode
from protocol.lifeline import Notice
from protocol.messages import Accepted

Context = zmq.Context[zmq.Socket[bytes]]
PATIENCE_S = 10.0
STARTED_S = 1.5
"""Promise of the coordinator's specification; the process is ready in 0.2 s on a free 2-core machine."""
RSS_LIMIT_BYTES = 50 * 1024 * 1024
IDLE_S = 2.0
IDLE_CPU_S = 0.02


def started(config: CoordinatorConfig) -> AbstractContextManager[RoleProcess]:
    addresses = (config.clients_address, config.engines_address, config.cluster_address)
    flags = ("--clients-address", "--engines-address", "--cluster-address")
    return role_process("coordinator", *(f"{flag}={address}" for flag, address in zip(flags, addresses, strict=True)))


def test_it_says_when_it_is_ready_and_ends_at_once_when_told(directory: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with started(config_in(directory)) as running:
            assert running.notice() == Notice("ready")
            assert (psutil.Process(running.process.pid).memory_info().rss) < RSS_LIMIT_BYTES
            running.terminate(number)
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
        assert running.process.wait(timeout=PATIENCE_S) == ExitCode.ORPHANED


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
def test_an_address_that_cannot_be_used_is_named_and_restarts_would_not_help(address: str, directory: Path) -> None:
    config = msgspec.structs.replace(config_in(directory), engines_address=address)
    with started(config) as running:
        code, log = running.wait()
    assert code == ExitCode.HOPELESS
    assert address in log
    assert "Traceback" not in log
