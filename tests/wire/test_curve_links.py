"""Encrypted links between real processes: who gets in, who does not, and what they are told."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from role_process import RoleProcess, role_process
from running_coordinator import short_directory

from engine_core.watched_push import WatchedPush
from protocol.addresses import CLIENTS, CLUSTER, ENGINES, ipc_address
from protocol.curve import CurveClient, CurveServer, KeyPair, new_key_pair, save_secret_key
from protocol.doorkeeper import AllowedKeys, Doorkeeper
from protocol.errors import AddressError
from protocol.sockets import SocketKind, open_door, open_socket, open_watched_push

HOST = "127.0.0.1"


def free_ports() -> int:
    """The first of three ports in a row that nobody listens on."""
    context = zmq.Context.instance()
    while True:
        with context.socket(zmq.REP) as first, context.socket(zmq.REP) as second, context.socket(zmq.REP) as third:
            port = first.bind_to_random_port(f"tcp://{HOST}", max_port=60_000)
            with contextlib.suppress(zmq.ZMQError):
                second.bind(f"tcp://{HOST}:{port + 1}")
                third.bind(f"tcp://{HOST}:{port + 2}")
                return port


class Place:
    """Keys, addresses and processes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports()
        self.pairs: dict[str, KeyPair] = {}
        self.allowed = directory / "allowed"
        for name in ("a", "b", "c"):
            self.pairs[name] = new_key_pair()
            save_secret_key(self.pairs[name], directory / name)
        self.allow("b")

    def allow(self, *names: str) -> None:
        self.allowed.write_text("".join(f"{self.pairs[name].public} {name}\n" for name in names))

    @contextlib.contextmanager
    def coordinator(self) -> Iterator[RoleProcess]:
        """With machine a's key, at ipc and tcp."""
        addresses = [f"--{name}-address={ipc_address(self.directory, name)}" for name in (CLIENTS, ENGINES, CLUSTER)]
        listen = f"--listen=tcp://{HOST}:{self.port}"
        keys = self.key_flag("a"), f"--allowed-keys-file={self.allowed}"
        with role_process("coordinator", *addresses, listen, *keys) as process:
            process.expect_notice("ready")
            yield process

    def key_flag(self, name: str) -> str:
        return f"--secret-key-file={self.directory / name}"

    @contextlib.contextmanager
    def engine_core(self, *flags: str, address: str = "") -> Iterator[RoleProcess]:
        address = address or f"tcp://{HOST}:{self.port + 1}"
        with role_process("engine-core", "--model=sim:", f"--engines-address={address}", *flags) as process:
            yield process

    def coordinator_flag(self, name: str = "a") -> str:
        return f"--coordinator-key={self.pairs[name].public}"


@pytest.fixture
def place() -> Iterator[Place]:
    with short_directory() as directory:
        yield Place(directory)


def test_an_allowed_key_gets_in_over_tcp_and_nobody_needs_one_over_ipc(place: Place) -> None:
    with place.coordinator():
        with place.engine_core(place.key_flag("b"), place.coordinator_flag()) as engine:
            engine.expect_notice("ready")
        with place.engine_core(address=ipc_address(place.directory, ENGINES)) as engine:
            engine.expect_notice("ready")


def test_a_key_that_is_not_allowed_ends_the_process_and_is_logged_once(place: Place) -> None:
    with place.coordinator() as coordinator:
        for _ in range(2):
            with place.engine_core(place.key_flag("c"), place.coordinator_flag()) as engine:
                code, log = engine.wait()
            assert code == 2
            assert "is not among the keys allowed there" in log
        coordinator.terminate()
        _, log = coordinator.wait()
    (line,) = [line for line in log.splitlines() if "refused a connection" in line]
    assert place.pairs["c"].public[:8] in line
    assert place.pairs["c"].public not in line


def test_a_key_that_is_taken_off_the_list_counts_from_the_next_connection_on(place: Place) -> None:
    with place.coordinator() as first, place.engine_core(place.key_flag("b"), place.coordinator_flag()) as engine:
        engine.expect_notice("ready")
        place.allow("c")
        with place.engine_core(place.key_flag("b"), place.coordinator_flag(), "--name=engine-1") as late:
            assert late.wait()[0] == 2
        assert engine.process.poll() is None, "who is in stays in"
        first.terminate()
        first.wait()
        with place.coordinator():
            code, log = engine.wait()
        assert code == 2
        assert "is not among the keys allowed there" in log


def test_plaintext_does_not_get_in_and_says_why(place: Place) -> None:
    with place.coordinator(), place.engine_core() as engine:
        code, log = engine.wait()
    assert code == 2
    assert "one end encrypts and the other does not" in log


def test_who_encrypts_does_not_talk_to_one_who_does_not(place: Place) -> None:
    addresses = [
        f"--{name}-address=tcp://{HOST}:{place.port + i}" for i, name in enumerate((CLIENTS, ENGINES, CLUSTER))
    ]
    with role_process("coordinator", *addresses) as coordinator:
        coordinator.expect_notice("ready")
        with place.engine_core(place.key_flag("b"), place.coordinator_flag()) as engine:
            code, log = engine.wait()
    assert code == 2
    assert "one end encrypts and the other does not" in log


def test_who_takes_another_for_the_coordinator_tries_on_and_says_so(place: Place) -> None:
    with place.coordinator(), place.engine_core(place.key_flag("b"), place.coordinator_flag("c")) as engine:
        assert engine.process.stderr is not None
        line = next(line for line in engine.process.stderr if "handshake" in line)
        assert "is --coordinator-key its public key?" in line
        assert engine.process.poll() is None


def test_plaintext_between_machines_is_refused_at_the_start() -> None:
    with role_process("engine-core", "--model=sim:", "--engines-address=tcp://10.0.0.1:7701") as engine:
        code, log = engine.wait()
    assert code == 2
    assert "shoal keys make" in log


@pytest.mark.parametrize(("allowed", "reason"), [(True, None), (False, "not among the keys allowed")])
def test_an_engine_core_hears_that_an_api_server_refuses_its_key(allowed: bool, reason: str | None) -> None:
    server, client = new_key_pair(), new_key_pair()
    with zmq.Context() as context, open_door(context) as door:
        keeper = Doorkeeper(AllowedKeys([client.public] if allowed else [], None), lambda: 0.0)
        receiver, address = open_socket(context, SocketKind.OUTPUTS_IN, f"tcp://{HOST}:0", CurveServer(server))
        opened, monitor = open_watched_push(context, address, CurveClient(client, server.public))
        push = WatchedPush(opened, monitor)
        try:
            push.send_multipart([b"first"], zmq.NOBLOCK)
            assert door.poll(5_000)
            door.send_multipart(keeper.reply(door.recv_multipart()))
            if reason is None:
                assert receiver.poll(5_000)
                assert receiver.recv() == b"first"
            else:
                assert monitor.poll(5_000)
                with pytest.raises(AddressError, match=reason):
                    push.send_multipart([b"second"], zmq.NOBLOCK)
        finally:
            push.close(0)
            receiver.close(0)


def test_without_a_doorkeeper_a_server_lets_nobody_in() -> None:
    server, client = new_key_pair(), new_key_pair()
    with zmq.Context() as context:
        receiver, address = open_socket(context, SocketKind.OUTPUTS_IN, f"tcp://{HOST}:0", CurveServer(server))
        curve = CurveClient(client, server.public)
        sender, _ = open_socket(context, SocketKind.OUTPUTS_OUT, address, curve)
        sender.send(b"x")
        assert not receiver.poll(300)
        sender.close(0)
        receiver.close(0)
