"""ZeroMQ addresses: what may be bound and connected, and the names of the ipc sockets."""

import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

import zmq

from protocol.errors import AddressError

CLIENTS = "clients"
ENGINES = "engines"
CLUSTER = "cluster"
"""File names of the coordinator's three sockets in a run directory."""
_LAST_PORT = 65_535


def ipc_address(run_directory: Path, name: str) -> str:
    """`ipc://<run_directory>/<name>`. Raises AddressError when the path is longer than a Unix socket allows."""
    return check_address(f"ipc://{run_directory / name}")


class CoordinatorAddresses(NamedTuple):
    """Where a coordinator's three sockets are."""

    clients: str
    engines: str
    cluster: str


def coordinator_addresses(base: str) -> CoordinatorAddresses:
    """Of a coordinator that others join at `tcp://host:port`: that port and the next two. Raises AddressError."""
    check_address(base, encrypted=True)
    head, _, port = base.rpartition(":")
    if not base.startswith("tcp://") or not port.isdigit() or not 1 <= int(port) <= _LAST_PORT - 2:
        raise AddressError(f"address {base!r} must be tcp://HOST:PORT, with a port from 1 to {_LAST_PORT - 2}")
    return CoordinatorAddresses(*(f"{head}:{int(port) + offset}" for offset in range(3)))


def tcp_host(address: str) -> str:
    """The host of a tcp address, without brackets."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def tcp_address(host: str, port: int) -> str:
    """`tcp://host:port`, with brackets around an IPv6 address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_everywhere(host: str) -> bool:
    """Whether this stands for all addresses of a machine: to be bound, but not connected."""
    return host in ("*", "0.0.0.0", "::")


def advertised(bound: str, wanted: str | None) -> str:
    """What others are told to connect to instead of the address that was bound: `wanted`, its port 0 being the bound
    one's; the bound one itself when nothing is wanted. Raises AddressError for one that nobody can connect to."""
    address = bound if wanted is None else check_address(wanted, encrypted=True)
    if not bound.startswith("tcp://"):
        if wanted is not None:
            raise AddressError(f"--advertised-address {wanted!r}: others cannot reach {bound!r} by another address")
        return bound
    host, port = tcp_host(address), address.rpartition(":")[2]
    if is_everywhere(host):
        raise AddressError(
            f"address {bound!r} takes connections at all of this machine's addresses: "
            "give the one that others reach, --advertised-address tcp://HOST:0"
        )
    return tcp_address(host, int(bound.rpartition(":")[2])) if port in ("0", "*") else address


def check_address(address: str, encrypted: bool = False) -> str:
    """Returns the address; raises AddressError for one that Shoal does not use.

    Allowed are `ipc://<absolute path>`, `inproc://<name>` and `tcp://<host>:<port>`, where 0 or * as port takes
    a free one. Plaintext TCP (not `encrypted`) is refused off loopback.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or not rest:
        raise AddressError(f"address {address!r} must look like ipc:///path or tcp://127.0.0.1:port")
    if scheme == "ipc":
        _check_ipc_path(rest)
    elif scheme == "tcp":
        _check_tcp(address, rest, encrypted)
    elif scheme != "inproc":
        raise AddressError(f"address {address!r}: {scheme} is not supported, only ipc and tcp are")
    return address


def _check_ipc_path(path: str) -> None:
    if not path.startswith("/"):
        raise AddressError(f"ipc path {path!r} must be absolute")
    if len(os.fsencode(path)) > zmq.IPC_PATH_MAX_LEN:
        raise AddressError(
            f"ipc path {path!r} is longer than the {zmq.IPC_PATH_MAX_LEN} bytes that a Unix socket allows: "
            "choose a shorter run directory (--run-dir)"
        )


def _check_tcp(address: str, rest: str, encrypted: bool) -> None:
    host, separator, port = rest.rpartition(":")
    host = host.strip("[]")
    if not separator or not (port == "*" or (port.isascii() and port.isdigit() and int(port) <= _LAST_PORT)):
        raise AddressError(f"address {address!r} needs a port between 0 and 65535")
    if not host:
        raise AddressError(f"address {address!r} needs a host")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not encrypted:
        raise AddressError(
            f"address {address!r} is not on loopback: plaintext between machines is refused. Make keys with "
            "`shoal keys make` and give --secret-key-file, and --coordinator-key to those who connect to a coordinator"
        )
