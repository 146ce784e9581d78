"""drain, restart --rolling and scale, on a running cluster under load: nobody sees an error."""

import subprocess
import sys
from pathlib import Path

import pytest
from shoal_process import ShoalProcess, running_shoal
from steady_load import SteadyLoad

pytestmark = pytest.mark.cluster

CALLERS = 16
BODY = {"model": "sim", "max_tokens": 40, "ignore_eos": True, "temperature": 0}


def operate(run_directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`shoal ARGUMENTS --run-dir DIR`."""
    command = [sys.executable, "-m", "deploy.cli", *arguments, "--run-dir", str(run_directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def names(shoal: ShoalProcess, role: str) -> set[str]:
    """Names of the living processes of a role."""
    lines = [child.cmdline() for child in shoal.children(role)]
    return {flag.removeprefix("--name=") for line in lines for flag in line if flag.startswith("--name=")}


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory


def test_drain_rolling_restart_and_scaling_under_load_without_an_error(run_directory: Path) -> None:
    with running_shoal("sim:decode_ms=5", "--engines", "2", "--run-dir", str(run_directory)) as shoal:
        before = {child.pid for child in shoal.children()}
        with SteadyLoad(shoal.url, CALLERS, BODY) as load:
            restarted = operate(run_directory, "restart", "--rolling")
            assert restarted.returncode == 0, restarted.stderr
            assert not before & {child.pid for child in shoal.children()}
            assert names(shoal, "engine-core") == {"engine-0", "engine-1"}
            for engines, api_servers in ((4, 2), (4, 3), (1, 1), (2, 2)):
                scaled = operate(run_directory, "scale", "--engines", str(engines), "--api-servers", str(api_servers))
                assert scaled.returncode == 0, scaled.stderr
                assert len(shoal.children("engine-core")) == engines
                assert len(shoal.children("api-server")) == api_servers
            drained = operate(run_directory, "drain", "engine-0")
            assert drained.returncode == 0, drained.stderr
            assert names(shoal, "engine-core") == {"engine-1"}
        assert not load.errors, load.errors
        assert load.answers > 10 * CALLERS
        assert "Traceback" not in shoal.log
