"""A real `shoal serve` for tests: its process tree, its endpoint, its metrics."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

START_LIMIT_S = 120.0


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ShoalProcess:
    """`shoal serve ARGS`, started by `start`, stopped by `stop` (or by the context manager that made it)."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = arguments
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        self._log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self.started_s = 0.0

    @property
    def process(self) -> subprocess.Popen[str]:
        """The supervisor."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> str:
        """What the whole cluster wrote to standard error and output so far."""
        return "".join(self._log)

    def start(self, wait: bool = True) -> "ShoalProcess":
        """Starts the cluster and, if asked, waits until every engine core can serve."""
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "serve", *self._arguments, "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        threading.Thread(target=self._collect_log, daemon=True).start()
        if wait:
            self.wait_ready()
        return self

    def _collect_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._log.append(line)

    def wait_ready(self) -> None:
        """Waits until `shoal serve` says that the whole cluster is up and the endpoint is ready."""
        self.wait_for(lambda: "ready" in self.log and self.is_ready(), START_LIMIT_S, "cluster is not ready")
        self.wait_for(lambda: self.engines_up() >= self._engines_asked(), START_LIMIT_S, "an engine core is missing")

    def _engines_asked(self) -> int:
        for name, value in zip(self._arguments, self._arguments[1:], strict=False):
            if name == "--engines":
                return int(value)
        return 2

    def is_ready(self) -> bool:
        """Whether the endpoint says that requests may come."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        return False

    def engines_up(self) -> int:
        """Engine cores that the cluster counts as up."""
        with contextlib.suppress(httpx.HTTPError):
            return int(self.metric("shoal:engine_up"))
        return 0

    def wait_for(self, condition: Callable[[], object], limit_s: float, message: str) -> None:
        """Waits until the condition is true; fails with the log when it does not come true in time."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"{message}: shoal ended with {self.process.returncode}\n{self.log[-4000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{message} after {limit_s} s\n{self.log[-4000:]}")
            time.sleep(0.05)

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """All samples of /metrics by name."""
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        text = httpx.get(f"{self.url}/metrics", timeout=10).raise_for_status().text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return samples

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples with this name and these labels."""
        return sum(
            value for found, value in self.metrics().get(name, []) if all(found.get(k) == v for k, v in labels.items())
        )

    def children(self, role: str = "") -> list[psutil.Process]:
        """Descendants of the supervisor whose command line names this role."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if not role or role in _command_line(child)]

    def stop(self, limit_s: float = 60.0) -> int:
        """SIGTERM; returns the exit code. Kills everything when it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            for child in self.children():
                child.kill()
            self.process.kill()
            raise AssertionError(f"shoal did not stop in {limit_s} s\n{self.log[-4000:]}") from None


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextlib.contextmanager
def running_shoal(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[ShoalProcess]:
    """A cluster that is up; stopped at the end, and its log shown if the test fails."""
    shoal = ShoalProcess(list(arguments), environment)
    try:
        yield shoal.start()
    except BaseException:
        print(shoal.log[-8000:])
        raise
    finally:
        shoal.stop()


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time of these processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def wake_ups(pid: int) -> int:
    """Voluntary context switches of all threads of a Linux process so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)
        total += int(match.group(1)) if match else 0
    return total
