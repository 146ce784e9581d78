"""The one place that makes ZeroMQ sockets: types, limits, heartbeats, lingering.

Every queue is bounded. A ROUTER tells when a peer is gone (ROUTER_MANDATORY) instead of dropping silently, and
a peer that comes back under its identity takes the identity over (ROUTER_HANDOVER). ZMTP heartbeats run on tcp
only: on ipc the kernel reports a dead peer at once, and an idle cluster should not be woken for nothing. On tcp a
socket is encrypted by CURVE when it is given keys; without, it stays on loopback (protocol.addresses).
"""

import enum
import functools
import operator
import socket as stdlib_socket
from typing import Any, NamedTuple, TypeVar, assert_never

import zmq
import zmq.utils.monitor

from protocol.addresses import check_address
from protocol.curve import CurveClient, CurveServer
from protocol.doorkeeper import ZAP_ADDRESS, ZAP_DOMAIN
from protocol.errors import AddressError
from protocol.heartbeats import HEARTBEAT_S, SILENCE_S

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest frame accepted; model cards are the largest (a packed tokenizer of 35 MB has about 7)."""
_IPC = "ipc://"
HEARTBEAT_INTERVAL_MS = round(HEARTBEAT_S * 1_000)
HEARTBEAT_TIMEOUT_MS = round((SILENCE_S - HEARTBEAT_S) * 1_000)
"""After a heartbeat was sent: together with the interval, a connection that is cut is given up within SILENCE_S."""
CONNECT_TIMEOUT_MS = 2_000
"""Then another attempt. By itself the kernel sends its packets again at growing intervals, up to a minute apart, and
so would not notice for as long that a cut link is back."""
HANDSHAKE_TIMEOUT_MS = 5_000


class SocketKind(enum.Enum):
    """What a socket is for; decides its type and its limits."""

    CLIENTS = enum.auto()
    """The coordinator's end of the clients link (ROUTER, binds)."""
    ENGINES = enum.auto()
    """The coordinator's end of the engines link (ROUTER, binds)."""
    MEMBER = enum.auto()
    """An API server's or engine core's end of its link (DEALER, connects)."""
    PUBLISHER = enum.auto()
    """The coordinator's end of the cluster link (XPUB, binds): new subscriptions can be seen."""
    SUBSCRIBER = enum.auto()
    """Anyone's end of the cluster link (SUB, connects)."""
    OUTPUTS_IN = enum.auto()
    """An API server's end of the outputs link (PULL, binds)."""
    OUTPUTS_OUT = enum.auto()
    """An engine core's end of the outputs link (PUSH, connects)."""
    INPROC_IN = enum.auto()
    """Receiving end between two threads of a process (PULL, binds)."""
    INPROC_OUT = enum.auto()
    """Sending end between two threads of a process (PUSH, connects)."""


class _Profile(NamedTuple):
    socket_type: int
    binds: bool
    high_water_mark: int
    """Messages queued per peer and direction; what happens beyond is the sender's rule."""
    linger_ms: int
    """How long a closed socket goes on to send what is queued."""


_PROFILES = {
    SocketKind.CLIENTS: _Profile(zmq.ROUTER, True, 10_000, 500),
    SocketKind.ENGINES: _Profile(zmq.ROUTER, True, 10_000, 500),
    SocketKind.MEMBER: _Profile(zmq.DEALER, False, 10_000, 500),
    SocketKind.PUBLISHER: _Profile(zmq.XPUB, True, 1_000, 0),
    SocketKind.SUBSCRIBER: _Profile(zmq.SUB, False, 1_000, 0),
    SocketKind.OUTPUTS_IN: _Profile(zmq.PULL, True, 20_000, 0),
    SocketKind.OUTPUTS_OUT: _Profile(zmq.PUSH, False, 20_000, 2_000),
    SocketKind.INPROC_IN: _Profile(zmq.PULL, True, 10_000, 0),
    SocketKind.INPROC_OUT: _Profile(zmq.PUSH, False, 10_000, 0),
}

S = TypeVar("S", bound=zmq.Socket)  # type: ignore[type-arg]


Curve = CurveServer | CurveClient


def open_socket(context: "zmq.Context[S]", kind: SocketKind, address: str, curve: Curve | None = None) -> tuple[S, str]:
    """A configured socket of this kind, bound or connected; also returns the address with the real port.

    `context` may be a zmq.Context or a zmq.asyncio.Context. A CURVE server lets nobody in without a doorkeeper (see
    `open_door`). Raises AddressError, also for an address that is taken. For a MEMBER use `open_member`.
    """
    profile = _PROFILES[kind]
    check_address(address, encrypted=curve is not None)
    if profile.binds and _is_taken(address):
        raise AddressError(f"address {address!r} is in use: another process listens there")
    socket = context.socket(profile.socket_type)
    try:
        _configure(socket, profile)
        _configure_transport(socket, address, curve)
        if profile.binds:
            socket.bind(address)
        else:
            socket.connect(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise _unusable(address, error) from error
    return socket, _last_endpoint(socket)


def bind_also(socket: "zmq.Socket[bytes]", address: str, curve: CurveServer) -> str:
    """Binds a socket, which may be bound already, to an encrypted address too; returns it with the real port.

    What was bound before stays as it was: libzmq gives each address the options of the moment. Raises AddressError.
    """
    check_address(address, encrypted=True)
    try:
        _configure_transport(socket, address, curve)
        socket.bind(address)
    except zmq.ZMQError as error:
        raise _unusable(address, error) from error
    return _last_endpoint(socket)


def open_door(context: "zmq.Context[S]") -> S:
    """The socket where libzmq asks this process's doorkeeper who may connect; before any CURVE server is opened."""
    door = context.socket(zmq.REP)
    door.setsockopt(zmq.LINGER, 0)
    door.bind(ZAP_ADDRESS)
    return door


def _last_endpoint(socket: "zmq.Socket[Any]") -> str:
    return socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")


def open_member(
    context: "zmq.Context[S]", address: str, identity: bytes, curve: CurveClient | None = None
) -> tuple[S, S]:
    """A member's DEALER and the monitor of its connection (see `connection_event`).

    The monitor is there before the connection is, so that its first event is the first connection: a member
    greets the coordinator whenever the monitor says UP, also after the coordinator's restart, and nobody polls.
    Sending while the connection is down raises zmq.Again (NOBLOCK) or blocks: keep what must not be lost.
    Raises AddressError.
    """
    return _open_monitored(context, SocketKind.MEMBER, address, identity, curve)


def open_watched_push(context: "zmq.Context[S]", address: str, curve: CurveClient | None = None) -> tuple[S, S]:
    """An engine core's end of the outputs link over TCP, and the monitor of its connection. Raises AddressError."""
    return _open_monitored(context, SocketKind.OUTPUTS_OUT, address, b"", curve)


def _open_monitored(
    context: "zmq.Context[S]", kind: SocketKind, address: str, identity: bytes, curve: CurveClient | None
) -> tuple[S, S]:
    check_address(address, encrypted=curve is not None)
    profile = _PROFILES[kind]
    socket = context.socket(profile.socket_type)
    _configure(socket, profile)
    if identity:
        socket.setsockopt(zmq.IDENTITY, identity)
    monitor = socket.get_monitor_socket(_MONITORED)
    try:
        _configure_transport(socket, address, curve)
        socket.connect(address)
    except zmq.ZMQError as error:
        monitor.close(0)
        socket.close(0)
        raise _unusable(address, error) from error
    return socket, monitor


def _is_taken(address: str) -> bool:
    """Whether somebody listens at an ipc address.

    libzmq removes whatever file is there before it binds, and so would silently take the place of one that is alive.
    A file that a dead process left refuses the connection.
    """
    if not address.startswith(_IPC):
        return False
    with stdlib_socket.socket(stdlib_socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full queue of connections raises BlockingIOError: somebody is there
        try:
            probe.connect(address.removeprefix(_IPC))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False  # no socket, no permission: binding will say so
    return True


def _unusable(address: str, error: zmq.ZMQError) -> AddressError:
    return AddressError(f"address {address!r} cannot be used: {zmq.strerror(error.errno or 0)}")


def _configure(socket: "zmq.Socket[Any]", profile: _Profile) -> None:
    socket.setsockopt(zmq.SNDHWM, profile.high_water_mark)
    socket.setsockopt(zmq.RCVHWM, profile.high_water_mark)
    socket.setsockopt(zmq.LINGER, profile.linger_ms)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    if not profile.binds:
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
    if profile.socket_type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    if profile.socket_type == zmq.DEALER:
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a connection that may never be
    if profile.socket_type == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    if profile.socket_type == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")


def _configure_transport(socket: "zmq.Socket[Any]", address: str, curve: Curve | None) -> None:
    """Options of the next bind or connect alone."""
    if not address.startswith("tcp://"):
        return
    socket.setsockopt(zmq.IPV6, "[" in address)  # [::1]; otherwise libzmq calls it no device
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_INTERVAL_MS + HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
    match curve:
        case CurveServer(own):
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorkeeper nobody comes in, not everybody
        case CurveClient(own, server):
            socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
        case None:
            pass
        case _:
            assert_never(curve)


class ConnectionEvent(enum.Enum):
    """What a connection monitor reports."""

    UP = enum.auto()
    """The connection is made and greeted: say Hello now."""
    DOWN = enum.auto()
    """It is gone, or an attempt to make it has failed. libzmq goes on trying."""
    BROKEN_OFF = enum.auto()
    """The other end hung up in the middle of the handshake; libzmq goes on trying. That is all that a CURVE server
    tells one who does not know its key."""
    KEY_REFUSED = enum.auto()
    """The other end knows our key and does not allow it. libzmq has given the connection up for good."""
    MISMATCH = enum.auto()
    """One end encrypts and the other does not, or it does not speak ZeroMQ. libzmq has given up as well."""


REFUSALS = {
    ConnectionEvent.KEY_REFUSED: "the public key of --secret-key-file is not among the keys allowed there",
    ConnectionEvent.MISMATCH: "one end encrypts and the other does not: see --secret-key-file and --coordinator-key",
}
"""Events after which no connection will come, each with what is to be said of it."""

_EVENTS = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: ConnectionEvent.UP,
    zmq.EVENT_DISCONNECTED: ConnectionEvent.DOWN,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: ConnectionEvent.BROKEN_OFF,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: ConnectionEvent.KEY_REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: ConnectionEvent.MISMATCH,
}
_MONITORED = functools.reduce(operator.or_, _EVENTS)


def connection_event(frames: list[bytes]) -> ConnectionEvent:
    """The event in the frames that a monitor socket delivered."""
    return _EVENTS[zmq.Event(zmq.utils.monitor.parse_monitor_message(frames)["event"])]
