"""What may be bound and connected."""

from pathlib import Path

import pytest
import zmq

from protocol.addresses import advertised, check_address, coordinator_addresses, ipc_address, tcp_address, tcp_host
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
        ("tcp://:5555", "needs a host"),
        ("tcp://127.0.0.1:", "needs a port"),
        ("tcp://127.0.0.1:65536", "needs a port"),
        ("tcp://127.0.0.1:-1", "needs a port"),
        ("tcp://127.0.0.1:²", "needs a port"),
        ("tcp://0.0.0.0:5555", "not on loopback"),
        ("tcp://*:5555", "not on loopback"),
        ("tcp://10.0.0.1:5555", "shoal keys make"),
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


def test_encrypted_tcp_may_go_anywhere() -> None:
    for address in ("tcp://10.0.0.1:5555", "tcp://*:0", "tcp://[2001:db8::1]:1", "tcp://mac-1.example.org:5555"):
        assert check_address(address, encrypted=True) == address
    with pytest.raises(AddressError, match="needs a port"):
        check_address("tcp://10.0.0.1", encrypted=True)


def test_a_coordinator_takes_three_ports_in_a_row() -> None:
    assert coordinator_addresses("tcp://[2001:db8::1]:7700") == (
        "tcp://[2001:db8::1]:7700",
        "tcp://[2001:db8::1]:7701",
        "tcp://[2001:db8::1]:7702",
    )


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::1", "mac-1"])
def test_a_host_comes_out_of_an_address_as_it_went_in(host: str) -> None:
    assert tcp_host(tcp_address(host, 5)) == host


def test_what_is_advertised_can_be_connected_to() -> None:
    assert advertised("ipc:///run/s", None) == "ipc:///run/s"
    assert advertised("tcp://10.0.0.1:5", None) == "tcp://10.0.0.1:5"
    assert advertised("tcp://0.0.0.0:5", "tcp://10.0.0.1:0") == "tcp://10.0.0.1:5", "the port that was bound"
    assert advertised("tcp://0.0.0.0:5", "tcp://gateway:9000") == "tcp://gateway:9000"
    for bound, wanted in (("tcp://0.0.0.0:5", None), ("tcp://[::]:5", None), ("tcp://10.0.0.1:5", "tcp://*:1")):
        with pytest.raises(AddressError, match="--advertised-address"):
            advertised(bound, wanted)
    with pytest.raises(AddressError, match="--advertised-address"):
        advertised("ipc:///run/s", "tcp://10.0.0.1:1")
