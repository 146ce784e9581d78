"""`shoal keys` prints public keys alone."""

from pathlib import Path

import pytest

from deploy.cli import main
from protocol.curve import load_key_pair


def test_make_prints_the_public_key_of_the_file_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.key"
    assert main(["keys", "make", str(path)]) == 0
    made = capsys.readouterr().out.strip()
    assert made == load_key_pair(path).public
    assert main(["keys", "public", str(path)]) == 0
    assert capsys.readouterr().out == f"{made}\n"
    assert main(["keys", "public", str(path), str(path)]) == 0
    assert capsys.readouterr().out == f"{made} {path}\n" * 2


def test_a_file_that_is_there_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.key"
    path.write_text("precious")
    assert main(["keys", "make", str(path)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert path.read_text() == "precious"
    assert main(["keys", "public", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
