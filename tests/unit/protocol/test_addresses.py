"""What may be bound and connected."""

from pathlib import Path

import pytest
import zmq

from protocol.addresses import check_address, ipc_address
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
