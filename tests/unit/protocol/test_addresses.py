"""What may be bound and connected, and the run directory."""

import os
import stat
from pathlib import Path

import pytest
import zmq

from protocol.addresses import check_address, ipc_address, make_run_directory
from protocol.errors import AddressError


@pytest.mark.parametrize(
    "address",
    [
        "ipc:///run/shoal/clients",
        "inproc://steps",
        "tcp://127.0.0.1:5555",
        "tcp://127.8.8.8:0",
        "tcp://localhost:65535",
        "tcp://[::1]:*",
    ],
)
def test_addresses_on_this_machine_are_allowed(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "must look like"),
        ("ipc://", "must look like"),
        ("/run/shoal", "must look like"),
        ("udp://127.0.0.1:1", "udp is not supported"),
        ("ipc://relative/path", "must be absolute"),
        ("ipc://@abstract", "must be absolute"),
        ("ipc:///" + "x" * zmq.IPC_PATH_MAX_LEN, "shorter run directory"),
        ("ipc:///" + "ä" * 54, "shorter run directory"),
        ("tcp://127.0.0.1", "needs a port"),
        ("tcp://127.0.0.1:", "needs a port"),
        ("tcp://127.0.0.1:65536", "needs a port"),
        ("tcp://127.0.0.1:-1", "needs a port"),
        ("tcp://127.0.0.1:²", "needs a port"),
        ("tcp://0.0.0.0:5555", "not on loopback"),
        ("tcp://*:5555", "not on loopback"),
        ("tcp://10.0.0.1:5555", "not on loopback"),
        ("tcp://[::]:5555", "not on loopback"),
        ("tcp://example.org:5555", "not on loopback"),
        ("tcp://eth0:5555", "not on loopback"),
    ],
)
def test_other_addresses_are_refused_with_the_reason(address: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        check_address(address)


def test_an_ipc_address_is_the_path_of_its_socket() -> None:
    assert ipc_address(Path("/run/shoal"), "clients") == "ipc:///run/shoal/clients"
    with pytest.raises(AddressError):
        ipc_address(Path("/" + "x" * 200), "clients")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_directory_is_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        given = make_run_directory(tmp_path / "run" / "shoal")
        fresh = make_run_directory()
    finally:
        os.umask(previous)
    assert mode_of(given) == mode_of(fresh) == 0o700
    fresh.rmdir()


def test_an_existing_private_directory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    (path / "clients").touch()
    assert make_run_directory(path) == path


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(AddressError, match="chmod 700"):
        make_run_directory(path)


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(AddressError, match=f"belongs to user {owner}"):
        make_run_directory(tmp_path)


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AddressError, match="not a directory"):
            make_run_directory(path)
