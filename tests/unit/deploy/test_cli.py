"""The command line starts light and says what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import main
from engine_core.config import EngineCoreConfig
from protocol.lifeline import Lifeline


def modules_loaded_by(code: str, suspects: set[str]) -> set[str]:
    """Which of the suspects a fresh interpreter has loaded after this code."""
    report = f"{code}\nimport sys\nprint(*({suspects!r} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=60, check=True)
    return set(child.stdout.splitlines()[-1].split())


HEAVY = {"mlx", "mlx_lm", "transformers", "torch", "huggingface_hub"}


def test_parsing_loads_nothing_that_only_a_command_needs() -> None:
    code = "from deploy.cli import main\ntry:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass"
    assert modules_loaded_by(code, HEAVY | {"starlette", "zmq", "rich", "aiohttp"}) == set()


def test_supervisor_does_not_load_mlx() -> None:
    assert modules_loaded_by("import deploy.supervisor", HEAVY) == set()
    assert modules_loaded_by("import deploy.demo_model", HEAVY) == {"mlx"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--engines", "-1"], "--engines"),
        (["engine-core", "--model", "sim:"], "--engines-address"),
        (["coordinator", "--config", "/no/such/shoal.toml"], "/no/such/shoal.toml"),
        (["serve", "--heartbeat-timeout-s", "1"], "--heartbeat-timeout-s"),
        (["serve", "--api-key", ""], "--api-key"),
        (["doctor", "--port", "x"], "--port: must be a whole number"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "coordinator", "engine-core", "api-server"])
def test_every_flag_is_explained_with_its_variable(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert text.count("SHOAL_") >= text.count("\n  --") > 3


def test_bench_is_handed_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", "--help"])
    assert end.value.code == 0
    assert "--url" in capsys.readouterr().out


def test_missing_model_folder_is_a_failure_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "/no/such/folder"]) == 1
    assert "no model folder" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["./none", "../none", "~/none", "/none", "./no/such/folder"])
def test_what_is_written_as_a_path_is_not_looked_for_on_the_hub(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", path]) == 1
    assert "no model folder" in capsys.readouterr().err


def test_engine_core_by_hand_takes_models_by_the_names_that_serve_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[EngineCoreConfig] = []
    commit = tmp_path / "snapshots" / "0123abc"

    def run(config: EngineCoreConfig, lifeline: Lifeline) -> int:
        started.append(config)
        return 0

    monkeypatch.setattr("engine_core.main.run", run)
    monkeypatch.setattr("deploy.models.pull", lambda model, cache: commit)
    arguments = ["engine-core", "--engines-address", "ipc:///tmp/engines", "--model", "owner/name"]
    assert main(arguments) == 0
    assert (started[0].model, started[0].served_model_name) == (str(commit), "owner/name")
    monkeypatch.undo()
    assert main([*arguments[:-1], "/no/such/folder"]) == 2


def test_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(model: str, cache: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("deploy.models.pull", interrupted)
    assert main(["pull", "demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "shoal pull: interrupted"


@pytest.mark.parametrize("command", [["pull", "demo"], ["models"]])
@pytest.mark.parametrize("missing", ["mlx.core", "huggingface_hub"])
def test_what_a_runtime_without_engine_lacks_is_named(
    command: list[str], missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("deploy.") and name != "deploy.cli"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(command) == 1
    error = capsys.readouterr().err
    assert missing in error
    assert "shoal[engine]" in error
