"""Socket options by kind, and what a member's monitor says."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.errors import AddressError
from protocol.sockets import (
    HEARTBEAT_INTERVAL_MS,
    HEARTBEAT_TIMEOUT_MS,
    MAX_MESSAGE_BYTES,
    ConnectionEvent,
    SocketKind,
    connection_event,
    open_member,
    open_socket,
)

Context = zmq.Context[zmq.Socket[bytes]]
TYPES = {
    SocketKind.CLIENTS: zmq.ROUTER,
    SocketKind.ENGINES: zmq.ROUTER,
    SocketKind.MEMBER: zmq.DEALER,
    SocketKind.PUBLISHER: zmq.XPUB,
    SocketKind.SUBSCRIBER: zmq.SUB,
    SocketKind.OUTPUTS_IN: zmq.PULL,
    SocketKind.OUTPUTS_OUT: zmq.PUSH,
    SocketKind.INPROC_IN: zmq.PULL,
    SocketKind.INPROC_OUT: zmq.PUSH,
}
BINDING = {
    SocketKind.CLIENTS,
    SocketKind.ENGINES,
    SocketKind.PUBLISHER,
    SocketKind.OUTPUTS_IN,
    SocketKind.INPROC_IN,
}


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def number(opened: zmq.Socket[bytes], option: int) -> int:
    value = opened.getsockopt(option)
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("kind", list(SocketKind))
def test_every_queue_and_every_message_is_bounded(context: Context, kind: SocketKind) -> None:
    opened, _ = open_socket(context, kind, "tcp://127.0.0.1:0" if kind in BINDING else "tcp://127.0.0.1:9")
    assert opened.type == TYPES[kind]
    assert 0 < number(opened, zmq.SNDHWM) <= 20_000
    assert 0 < number(opened, zmq.RCVHWM) <= 20_000
    assert number(opened, zmq.MAXMSGSIZE) == MAX_MESSAGE_BYTES
    assert 0 <= number(opened, zmq.LINGER) <= 2_000


def test_tcp_has_heartbeats_and_ipc_has_not(context: Context, tmp_path: Path) -> None:
    over_tcp, _ = open_socket(context, SocketKind.CLIENTS, "tcp://127.0.0.1:0")
    over_ipc, _ = open_socket(context, SocketKind.CLIENTS, f"ipc://{tmp_path}/s")
    assert number(over_tcp, zmq.HEARTBEAT_IVL) == HEARTBEAT_INTERVAL_MS
    assert number(over_tcp, zmq.HEARTBEAT_TIMEOUT) == HEARTBEAT_TIMEOUT_MS
    assert number(over_ipc, zmq.HEARTBEAT_IVL) == 0


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:*"])
def test_the_real_port_comes_back(context: Context, address: str) -> None:
    _, bound = open_socket(context, SocketKind.OUTPUTS_IN, address)
    assert int(bound.rpartition(":")[2]) > 0
    sender, _ = open_socket(context, SocketKind.OUTPUTS_OUT, bound)
    assert sender.get_string(zmq.LAST_ENDPOINT) == bound


def test_a_router_tells_when_a_peer_is_not_there(context: Context, tmp_path: Path) -> None:
    router, _ = open_socket(context, SocketKind.ENGINES, f"ipc://{tmp_path}/s")
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_a_member_queues_nothing_while_there_is_no_connection(context: Context, tmp_path: Path) -> None:
    member, _ = open_member(context, f"ipc://{tmp_path}/s", b"m")
    with pytest.raises(zmq.Again):
        member.send(b"x", zmq.NOBLOCK)


def test_a_member_hears_of_each_connection(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    member, monitor = open_member(context, address, b"m")
    monitor.setsockopt(zmq.RCVTIMEO, 10_000)
    for _ in range(2):
        router, _ = open_socket(context, SocketKind.CLIENTS, address)
        assert connection_event(monitor.recv_multipart()) is ConnectionEvent.UP
        router.close(0)
        assert connection_event(monitor.recv_multipart()) is ConnectionEvent.DOWN
    member.close(0)


def test_a_publisher_sees_every_subscription(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    publisher, _ = open_socket(context, SocketKind.PUBLISHER, address)
    publisher.setsockopt(zmq.RCVTIMEO, 10_000)
    first, _ = open_socket(context, SocketKind.SUBSCRIBER, address)
    assert publisher.recv() == b"\x01"
    second, _ = open_socket(context, SocketKind.SUBSCRIBER, address)
    assert publisher.recv() == b"\x01"
    assert first is not second


def test_a_taken_address_leaves_no_socket_open(tmp_path: Path) -> None:
    context: Context = zmq.Context()
    taken, address = open_socket(context, SocketKind.CLIENTS, "tcp://127.0.0.1:0")
    with pytest.raises(AddressError, match=f"{address}.* in use"):
        open_socket(context, SocketKind.CLIENTS, address)
    taken.close(0)
    context.term()  # would wait for ever for a socket left open


def test_a_refused_address_makes_no_socket(context: Context) -> None:
    for open_it in (
        lambda: open_socket(context, SocketKind.CLIENTS, "tcp://*:1"),
        lambda: open_member(context, "tcp://10.0.0.1:1", b"m"),
    ):
        with pytest.raises(AddressError):
            open_it()


def test_an_ipc_address_where_somebody_listens_is_not_taken_over(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'clients'}"
    first, _ = open_socket(context, SocketKind.CLIENTS, address)
    with pytest.raises(AddressError, match="another process listens"):
        open_socket(context, SocketKind.CLIENTS, address)
    member, monitor = open_member(context, address, b"api-0/1")
    assert connection_event(monitor.recv_multipart()) is ConnectionEvent.UP
    for opened in (member, monitor, first):
        opened.close(0)


def test_an_ipc_address_that_a_dead_process_left_is_used(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "clients"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    open_socket(context, SocketKind.CLIENTS, f"ipc://{path}")
