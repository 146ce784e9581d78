"""Start, memory, idleness, death and drain of the whole cluster."""

import signal
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest
from shoal_process import ShoalProcess, cpu_seconds, running_shoal

pytestmark = pytest.mark.cluster

MIB = 1024 * 1024
API_SERVER_RSS_LIMIT = 90 * MIB
COORDINATOR_RSS_LIMIT = 50 * MIB
IDLE_S = 10.0


@pytest.mark.model
def test_processes_are_small(demo_cluster: ShoalProcess) -> None:
    api_servers = [child.memory_info().rss for child in demo_cluster.children("api-server")]
    coordinators = [child.memory_info().rss for child in demo_cluster.children("coordinator")]
    assert len(api_servers) == 2
    assert len(coordinators) == 1
    assert max(api_servers) < API_SERVER_RSS_LIMIT
    assert max(coordinators) < COORDINATOR_RSS_LIMIT


@pytest.mark.model
def test_idle_cluster_uses_no_cpu(demo_cluster: ShoalProcess) -> None:
    processes = [psutil.Process(demo_cluster.process.pid), *demo_cluster.children()]
    time.sleep(1)
    before = {process.pid: cpu_seconds([process]) for process in processes}
    time.sleep(IDLE_S)
    used = {process.pid: cpu_seconds([process]) - before[process.pid] for process in processes}
    assert all(seconds <= 0.005 * IDLE_S for seconds in used.values()), used


def test_killed_supervisor_takes_every_process_along() -> None:
    shoal = ShoalProcess(["sim:decode_ms=5"]).start()
    children = shoal.children()
    assert len(children) == 5
    shoal.process.kill()
    _, alive = psutil.wait_procs(children, timeout=2.0)
    assert not alive, alive


def test_sigterm_lets_a_running_stream_end(tmp_path: object) -> None:
    shoal = ShoalProcess(["sim:decode_ms=20"]).start()
    body = {"model": "sim", "prompt": "drain", "max_tokens": 100, "ignore_eos": True, "stream": True}
    lines: list[str] = []
    with httpx.stream("POST", f"{shoal.url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            lines.append(line)
            if len(lines) == 6:
                shoal.process.send_signal(signal.SIGTERM)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in "".join(lines).replace(" ", "")
    assert shoal.process.wait(20) == 0
    assert not [line for line in shoal.log.splitlines() if "Traceback" in line], shoal.log


def test_killed_api_server_frees_its_requests_and_comes_back() -> None:
    with running_shoal("sim:decode_ms=20", "--api-servers", "1") as shoal:
        body = {"model": "sim", "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", f"{shoal.url}/v1/completions", json=body, timeout=60) as response,
        ):
            for number, line in enumerate(response.iter_lines()):
                assert "error" not in line
                if number == 6:
                    shoal.children("api-server")[0].kill()
        shoal.wait_ready()
        assert shoal.metric("shoal:num_requests_running") == 0
        answer = httpx.post(f"{shoal.url}/v1/completions", json={**body, "stream": False, "max_tokens": 5}, timeout=30)
        assert answer.status_code == 200, answer.text


def test_taken_port_is_said_before_anything_starts(sim_cluster: ShoalProcess) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "serve", "sim:", "--port", str(sim_cluster.port)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode not in (0, None)
    assert str(sim_cluster.port) in second.stderr
    assert "Traceback" not in second.stderr


def test_streams_are_whole_when_their_api_server_was_stopped_while_the_engine_core_finished_them() -> None:
    with running_shoal("sim:decode_ms=5", "--api-servers", "1", "--engines", "1") as shoal:
        body = {"model": "sim", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
        outcomes: list[str] = []

        def stream() -> None:
            with httpx.stream("POST", f"{shoal.url}/v1/completions", json=body, timeout=60) as response:
                outcomes.append("\n".join(response.iter_lines()))

        threads = [threading.Thread(target=stream) for _ in range(16)]
        for thread in threads:
            thread.start()
        shoal.wait_for(lambda: shoal.metric("shoal:num_requests_running") == 16, 10, "streams do not run")
        (api_server,) = shoal.children("api-server")
        api_server.suspend()
        try:
            shoal.wait_for(lambda: "lost: not heard from" in shoal.log, 10, "the API server is not given up")
        finally:
            api_server.resume()
        for thread in threads:
            thread.join(10)
        assert len(outcomes) == 16, "a stream hangs"
        assert all('"error"' not in text and "data: [DONE]" in text for text in outcomes)
        answer = httpx.post(f"{shoal.url}/v1/completions", json={**body, "stream": False, "max_tokens": 5}, timeout=30)
        assert answer.status_code == 200, answer.text


def test_a_stopped_coordinator_makes_the_endpoint_unready_until_it_goes_on() -> None:
    with running_shoal("sim:decode_ms=5", "--api-servers", "1", "--engines", "1") as shoal:
        (coordinator,) = shoal.children("coordinator")
        coordinator.suspend()
        try:
            shoal.wait_for(lambda: not shoal.is_ready(), 6, "/ready does not notice")
            assert shoal.metric("shoal:coordinator_up") == 0
        finally:
            coordinator.resume()
        shoal.wait_for(shoal.is_ready, 6, "/ready stays 503")
