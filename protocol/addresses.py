"""ZeroMQ addresses: what may be bound and connected, and the names of the ipc sockets."""

import ipaddress
import os
from pathlib import Path

import zmq

from protocol.errors import AddressError

CLIENTS = "clients"
ENGINES = "engines"
CLUSTER = "cluster"
"""File names of the coordinator's three sockets in a run directory."""


def ipc_address(run_directory: Path, name: str) -> str:
    """`ipc://<run_directory>/<name>`. Raises AddressError when the path is longer than a Unix socket allows."""
    return check_address(f"ipc://{run_directory / name}")


def check_address(address: str) -> str:
    """Returns the address; raises AddressError for one that Shoal does not use.

    Allowed are `ipc://<absolute path>`, `inproc://<name>` and `tcp://<loopback>:<port>`, where 0 or * as port takes
    a free one. TCP to other machines needs CURVE, which this version has not: plaintext off loopback is refused.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or not rest:
        raise AddressError(f"address {address!r} must look like ipc:///path or tcp://127.0.0.1:port")
    if scheme == "ipc":
        _check_ipc_path(rest)
    elif scheme == "tcp":
        _check_tcp(address, rest)
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


def _check_tcp(address: str, rest: str) -> None:
    host, separator, port = rest.rpartition(":")
    host = host.strip("[]")
    if not separator or not (port == "*" or (port.isascii() and port.isdigit() and int(port) <= 65535)):
        raise AddressError(f"address {address!r} needs a port between 0 and 65535")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise AddressError(
            f"address {address!r} is not on loopback: plaintext between machines is refused "
            "(encrypted links are not part of this version)"
        )
