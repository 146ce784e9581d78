"""What is wrong with the options is found before a process starts."""

from pathlib import Path

import pytest

from deploy.start_checks import StartError, check_machine, check_memory, check_options


def test_good_options_pass(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# of the team\nkey-1\n")
    check_options("sim:decode_ms=5", {"api_key_file": str(tmp_path / "keys"), "api_key": ("x",)})
    check_options("demo", {})


@pytest.mark.parametrize("content", [b"", b"# only a comment\n\n", b"\xff\xfe"])
def test_a_key_file_without_keys_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(StartError, match="keys"):
        check_options("demo", {"api_key_file": str(tmp_path / "keys")})


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"none cannot be read: No such file"):
        check_options("demo", {"api_key_file": str(tmp_path / "none")})


def test_a_simulated_device_that_is_not_described_well_is_an_error() -> None:
    with pytest.raises(StartError, match="decode_msx"):
        check_options("sim:decode_msx=5", {})


def test_kv_caches_must_fit_beside_the_weights() -> None:
    check_memory(None, 2, 100, 10)
    check_memory(400, 2, 100, 1000)
    with pytest.raises(StartError, match="--kv-cache-memory-bytes 401"):
        check_memory(401, 2, 100, 1000)


def test_missing_openblas_is_one_line_with_advice_and_nothing_to_a_simulated_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("deploy.start_checks.lacks_openblas", lambda environment: True)
    check_machine("sim:", 1, None)
    assert caplog.messages == []
    check_machine(str(tmp_path), 1, None)
    (line,) = caplog.messages
    assert "apt-get install libopenblas0-pthread" in line
