"""A cluster on several machines, each with its own supervisor, as an operator starts it."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
from namespaces import Namespace, inside
from shoal_process import START_LIMIT_S, ShoalProcess

PORT = 7700
QUICK = ("--drain-timeout-s", "2")


class Machine:
    """One machine and what was started on it."""

    def __init__(self, namespace: Namespace, directory: Path) -> None:
        self.namespace = namespace
        self.letter = namespace.name[-1]
        self.key_file = directory / f"{self.letter}.key"
        self.public_key = make_key(self.key_file)
        self._shoal: ShoalProcess | None = None

    @property
    def shoal(self) -> ShoalProcess:
        """Its supervisor."""
        assert self._shoal is not None, "not started"
        return self._shoal

    def start(self, *arguments: str) -> ShoalProcess:
        """Starts a supervisor there."""
        keys = ("--secret-key-file", str(self.key_file))
        with inside(self.namespace):
            self._shoal = ShoalProcess([*arguments, *keys, *QUICK]).start(wait=False)
        return self._shoal

    def listen(self, model: str, allowed: Path, engines: int = 0) -> ShoalProcess:
        """Coordinator and API server, and perhaps engine cores."""
        address = f"tcp://{self.namespace.address}:{PORT}"
        counts = ("--engines", str(engines), "--api-servers", "1")
        return self.start(model, *counts, "--listen", address, "--allowed-keys-file", str(allowed))

    def join(self, coordinator: "Machine", model: str, *arguments: str) -> ShoalProcess:
        """One engine core, unless the arguments say otherwise."""
        address = f"tcp://{coordinator.namespace.address}:{PORT}"
        where = ("--join", address, f"--coordinator-key={coordinator.public_key}", "--machine", self.letter)
        return self.start(model, "--engines", "1", "--api-servers", "0", *where, *arguments)

    def vanish(self) -> None:
        """kill -9 of everything on it."""
        everyone = [psutil.Process(self.shoal.process.pid), *self.shoal.children()]
        for process in everyone:
            process.kill()
        self.shoal.process.wait()

    def stop(self) -> None:
        """Ends what was started there, and shows its log."""
        if self._shoal is not None:
            print(f"--- {self.letter}\n{self._shoal.log[-6_000:]}")
            self._shoal.stop()
            self._shoal = None


def make_key(path: Path) -> str:
    """`shoal keys make`; the public key."""
    command = [sys.executable, "-m", "deploy.cli", "keys", "make", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def wait_ready(*machines: Machine) -> None:
    """Until each supervisor says that all it has started is ready."""
    for machine in machines:
        machine.shoal.wait_for(
            lambda m=machine: "Shoal is ready" in m.shoal.log, START_LIMIT_S, "a machine is not ready"
        )


def seconds_until(shoal: ShoalProcess, text: str, limit_s: float) -> float:
    """How long it takes until the log says so."""
    began_s = time.monotonic()
    shoal.wait_for(lambda: text in shoal.log, limit_s, f"{text!r} is not in the log")
    return time.monotonic() - began_s
