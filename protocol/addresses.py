"""ZeroMQ addresses: what may be bound and connected, and the private directory of the ipc sockets."""

import ipaddress
import os
import stat
import tempfile
from pathlib import Path

import zmq

from protocol.errors import AddressError

CLIENTS = "clients"
ENGINES = "engines"
CLUSTER = "cluster"
"""File names of the coordinator's three sockets in a run directory."""


def make_run_directory(path: Path | None = None) -> Path:
    """Creates a run directory (mode 0700, ours), or checks the one given.

    Raises AddressError when `path` is no directory, or others than we could get at the sockets in it.
    """
    if path is None:
        return Path(tempfile.mkdtemp(prefix="shoal-"))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise AddressError(f"run directory {path} is not a directory") from error
    status = path.stat()
    if status.st_uid != os.getuid():
        raise AddressError(f"run directory {path} belongs to user {status.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise AddressError(f"run directory {path} is open to other users: chmod 700 it")
    return path


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
