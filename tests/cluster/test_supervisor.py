"""What `shoal serve` does with its processes and its options, with real processes on a simulated device."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

SIM = "sim:decode_ms=20"
KEY = "key-of-the-test"


def run_serve(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`shoal serve` that is expected to end by itself."""
    command = [sys.executable, "-m", "deploy.cli", "serve", "--port", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_model_that_cannot_be_loaded_ends_everything_with_a_failure(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    ended = run_serve(str(tmp_path), "--engines", "1", "--api-servers", "1")
    assert ended.returncode == 1
    last_line = ended.stderr.splitlines()[-1]
    assert "engine-0 cannot start: mlx-lm cannot load" in last_line, "the cause is not where one looks first"
    assert "Traceback" not in ended.stderr


def test_model_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    ended = run_serve(str(tmp_path / "none"))
    assert ended.returncode == 1
    assert "no model folder" in ended.stderr
    assert "shoal pull" not in ended.stderr
    assert "started" not in ended.stderr


def test_bad_option_and_unknown_key_are_usage_errors(tmp_path: Path) -> None:
    ended = run_serve(SIM, "--max-num-seqs", "0")
    assert (ended.returncode, "--max-num-seqs" in ended.stderr) == (2, True)
    (tmp_path / "shoal.toml").write_text('engine = 3\nlog_level = "info"\n')
    ended = run_serve(SIM, "--config", str(tmp_path / "shoal.toml"))
    assert ended.returncode == 2
    assert "unknown key 'engine' (did you mean 'engines'?)" in ended.stderr


def test_options_of_the_roles_come_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(f'engines = 1\nserved_model_name = "fish"\napi_key = ["{KEY}"]\n')
    environment = {"SHOAL_API_SERVERS": "1", "SHOAL_LOG_FORMAT": "json", "SHOAL_EINGABE": "x"}
    shoal = ShoalProcess([SIM, "--config", str(tmp_path / "shoal.toml"), "--engines", "1"], environment)
    try:
        shoal.start(wait=False)
        shoal.wait_for(lambda: "Shoal is ready" in shoal.log, 60, "no cluster")
        assert [len(shoal.children(role)) for role in ("engine-core", "api-server", "coordinator")] == [1, 1, 1]
        assert "model fish" in shoal.log
        assert "SHOAL_EINGABE is not an option" in shoal.log
        assert '"process":"engine-0"' in shoal.log
        assert not any(KEY in argument for child in shoal.children() for argument in child.cmdline())
        assert KEY not in shoal.log
        assert httpx.get(f"{shoal.url}/v1/models").status_code == 401
        answer = httpx.get(f"{shoal.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert [model["id"] for model in answer.json()["data"]] == ["fish"]
    finally:
        shoal.stop()


def test_process_that_keeps_dying_is_started_again_later_and_later() -> None:
    with running_shoal(SIM, "--engines", "1", "--api-servers", "1") as shoal:
        for _ in range(3):
            (engine_core,) = shoal.children("engine-core")
            engine_core.kill()
            engine_core.wait(5)
            shoal.wait_for(lambda: len(shoal.children("engine-core")) == 1, 10, "not started again")
            shoal.wait_for(lambda: shoal.engines_up() == 1, 20, "the engine core does not come back")
        lines = [line for line in shoal.log.splitlines() if "engine-0 ended by signal 9" in line]
        assert [line.rpartition(" in ")[2] for line in lines] == ["0.0 s", "0.5 s", "1.0 s"]


def test_second_signal_ends_at_once() -> None:
    shoal = ShoalProcess([SIM]).start()
    children = shoal.children()
    body = {"model": "sim", "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with (
        pytest.raises(httpx.HTTPError),
        httpx.stream("POST", f"{shoal.url}/v1/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        shoal.process.send_signal(signal.SIGINT)
        shoal.wait_for(lambda: "draining" in shoal.log, 10, "it does not drain")
        assert shoal.process.poll() is None
        asked_s = time.monotonic()
        shoal.process.send_signal(signal.SIGINT)
        assert shoal.process.wait(3) == 3
        assert time.monotonic() - asked_s < 3
        for _ in lines:
            pass
    assert not psutil.wait_procs(children, timeout=1)[1]


def test_run_directory_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    with running_shoal(SIM, environment=environment) as shoal:
        (directory,) = tmp_path.glob("shoal-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        shoal.stop()
        assert not directory.exists()


def test_run_directory_of_a_killed_supervisor_is_removed_by_the_next(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    first = ShoalProcess([SIM], environment).start()
    children = first.children()
    (stale,) = tmp_path.glob("shoal-*")
    first.process.kill()
    assert not psutil.wait_procs(children, timeout=2)[1]
    assert stale.exists()
    with running_shoal(SIM, environment=environment):
        assert not stale.exists()
        assert len(list(tmp_path.glob("shoal-*"))) == 1


def test_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running_shoal(SIM, "--run-dir", str(tmp_path)):
        ended = run_serve(SIM, "--run-dir", str(tmp_path))
    assert ended.returncode == 1
    assert "is used by a supervisor that is alive" in ended.stderr
    assert list(tmp_path.iterdir()) == []
