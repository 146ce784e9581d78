"""`shoal drain`, `restart` and `scale` where there is nothing to talk to, or nothing to say."""

from pathlib import Path

import pytest

from deploy import control_commands
from deploy.cli import main
from deploy.run_directory import RunDirectory, running_directories


@pytest.fixture(autouse=True)
def no_other_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("arguments", [["drain", "engine-0"], ["restart", "--rolling"], ["scale", "--engines", "2"]])
def test_without_a_running_server_they_say_so(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert f"shoal {arguments[0]}: no `shoal serve` of this user runs" in capsys.readouterr().err


def test_a_run_directory_without_a_server_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "engine-0", "--run-dir", str(tmp_path)]) == 1
    assert f"no `shoal serve` runs in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --engines, --api-servers or both"),
        (["--engines", "0"], "--engines: must be a whole number from 1 to 256 (got 0)"),
        (["--api-servers", "many"], "--api-servers: must be a whole number from 1 to 256 (got many)"),
    ],
)
def test_a_scale_that_makes_no_sense(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["drain"], ["restart"], ["restart", "engine-0"]])
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_running_server_is_found_and_several_must_be_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    first = RunDirectory(None)
    assert running_directories() == [first.path]
    second = RunDirectory(None)
    with pytest.raises(control_commands.ControlError, match="several run: choose with --run-dir"):
        control_commands._directory(None)
    first.remove()
    assert control_commands._directory(None) == second.path
    second.remove()
    assert running_directories() == []
