"""Two supervisors that share a coordinator over encrypted TCP, here on one machine; tests/netns has real networks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from shoal_process import ShoalProcess, free_port

pytestmark = pytest.mark.cluster


def make_key(path: Path) -> str:
    command = [sys.executable, "-m", "deploy.cli", "keys", "make", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def ask(shoal: ShoalProcess, number: int) -> httpx.Response:
    body = {"model": "sim", "prompt": f"number {number}", "max_tokens": 5}
    return httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=30)


class Machines:
    """Those that share a coordinator: a has it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._address = f"tcp://127.0.0.1:{free_port()}"
        self._keys = {name: make_key(directory / name) for name in "abc"}
        self._started: list[ShoalProcess] = []

    def allow(self, at: str, *names: str) -> None:
        lines = [f"{self._keys[name]} {name}\n" for name in names]
        (self._directory / f"allowed-at-{at}").write_text("".join(lines))

    def start(self, name: str, engines: int = 1, api_servers: int = 1) -> ShoalProcess:
        counts = ["sim:", "--engines", str(engines), "--api-servers", str(api_servers)]
        keys = ["--secret-key-file", f"{self._directory}/{name}"]
        keys += ["--allowed-keys-file", f"{self._directory}/allowed-at-{name}"]
        join = ["--join", self._address, f"--coordinator-key={self._keys['a']}", "--machine", name]
        shoal = ShoalProcess([*counts, *keys, *(["--listen", self._address] if name == "a" else join)])
        self._started.append(shoal.start(wait=False))
        shoal.wait_for(lambda: "Shoal is ready" in shoal.log, 60, f"{name} is not ready")
        return shoal

    def stop(self) -> None:
        for shoal in reversed(self._started):
            print(shoal.log[-6_000:])
            shoal.stop()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    for at in "abc":
        machines.allow(at, "b")
    yield machines
    machines.stop()


def test_both_endpoints_serve_by_both_engine_cores_and_a_death_is_told(machines: Machines) -> None:
    a, b = machines.start("a"), machines.start("b")
    for shoal in (a, b):
        shoal.wait_for(lambda s=shoal: s.engines_up() == 2, 10, "an engine core is missing")
    assert [ask(shoal, number).status_code for number in range(4) for shoal in (a, b)] == [200] * 8
    for shoal in (a, b):
        assert "refused a connection" not in shoal.log
    assert a.metric("shoal:requests_resumed_total") == 0
    (engine,) = b.children("engine-core")
    engine.kill()
    a.wait_for(lambda: "lost with 0 requests: its process has exited" in a.log, 5, "b's supervisor did not tell")
    a.wait_for(lambda: a.engines_up() == 2, 20, "it does not come back")
    assert ask(b, 1).status_code == 200


def test_an_engine_core_whose_key_an_api_server_does_not_allow_is_routed_around(machines: Machines) -> None:
    machines.allow("a", "b", "c")
    a, b = machines.start("a"), machines.start("b", engines=0)
    machines.start("c", api_servers=0)
    b.wait_for(lambda: b.engines_up() == 2, 10, "an engine core is missing")
    assert [ask(b, number).status_code for number in range(4)] == [200] * 4
    assert "cannot reach API server api-0@b: its requests go elsewhere" in a.log
    assert b.log.count("refused a connection") == 1
    assert [ask(a, number).status_code for number in range(4)] == [200] * 4
