"""A coordinator's loop in a thread with real sockets, and members to talk to it over theirs."""

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import zmq

from coordinator.config import CoordinatorConfig
from coordinator.loop import Sockets
from coordinator.main import make_loop
from protocol.addresses import CLIENTS, CLUSTER, ENGINES, ipc_address
from protocol.codec import AT_CLIENT, AT_ENGINE, AT_SUBSCRIBER, Door, Frame, Received, encode, pack_token_ids
from protocol.identifiers import ClientIndex, Incarnation, RequestId, member_identity
from protocol.messages import (
    PROTOCOL_VERSION,
    ClientHello,
    ClientWelcome,
    ClusterSnapshot,
    EngineCoreRequest,
    EngineHello,
    EngineWelcome,
    Heartbeat,
    Message,
    ModelInfo,
)
from protocol.sampling import SamplingParams
from protocol.sockets import ConnectionEvent, SocketKind, connection_event, open_member, open_socket

PATIENCE_MS = 10_000
"""A test that waits for longer has failed."""
HEARTBEAT_MS = 200
M = TypeVar("M", bound=Message)
MODEL = ModelInfo("small", "hash-of-small", 2048)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="shoal-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def config_in(directory: Path, heartbeat_timeout_s: float = 3.0) -> CoordinatorConfig:
    return CoordinatorConfig(
        clients_address=ipc_address(directory, CLIENTS),
        engines_address=ipc_address(directory, ENGINES),
        cluster_address=ipc_address(directory, CLUSTER),
        heartbeat_timeout_s=heartbeat_timeout_s,
    )


@contextlib.contextmanager
def running_coordinator(config: CoordinatorConfig) -> Iterator[None]:
    """Runs the loop in a thread of this process; an exception in it fails the test."""
    stop, stopper = socket.socketpair()
    with zmq.Context() as context, stop, stopper, contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(open_socket(context, kind, address)[0])
            for kind, address in (
                (SocketKind.CLIENTS, config.clients_address),
                (SocketKind.ENGINES, config.engines_address),
                (SocketKind.PUBLISHER, config.cluster_address),
            )
        ]
        loop = make_loop(config, Sockets(opened[0], opened[1], opened[2], stop))
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(loop.run)
            try:
                yield
            finally:
                stopper.send(b"stop")
                running.result()


class Wire:
    """One socket of a member, with patience."""

    def __init__(self, opened: "zmq.Socket[bytes]", door: Door[Message]) -> None:
        self.socket = opened
        self.socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        self._door = door

    def receive(self) -> Received[Message]:
        return self._door.decode(self.socket.recv_multipart())

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others are skipped."""
        while True:
            message = self.receive().message
            if isinstance(message, kind):
                return message

    def send(self, message: Message, *buffers: Frame) -> None:
        self.socket.send_multipart(encode(message, *buffers))

    def send_raw(self, frames: Sequence[bytes]) -> None:
        self.socket.send_multipart(list(frames))


class Member(Wire):
    """A member's connection, with its monitor."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, name: str, door: Door[Message]) -> None:
        self.name = name
        self.incarnation = Incarnation(f"run-of-{name}")
        opened, self._monitor = open_member(context, address, member_identity(name, self.incarnation))
        self._monitor.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        super().__init__(opened, door)

    def wait_until_up(self) -> None:
        while connection_event(self._monitor.recv_multipart()) is not ConnectionEvent.UP:
            pass

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)


class WireEngine(Member):
    """An engine core over a real socket."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", config: CoordinatorConfig, name: str = "engine-0"
    ) -> None:
        super().__init__(context, config.engines_address, name, AT_ENGINE)  # type: ignore[arg-type]

    def join(self) -> EngineWelcome:
        self.wait_until_up()
        self.send(EngineHello(PROTOCOL_VERSION, self.name, self.incarnation, 1, MODEL))
        return self.expect(EngineWelcome)


class WireClient(Member):
    """An API server over a real socket."""

    index = ClientIndex(-1)

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", config: CoordinatorConfig, name: str = "api-0"
    ) -> None:
        super().__init__(context, config.clients_address, name, AT_CLIENT)  # type: ignore[arg-type]

    def join(self) -> ClientWelcome:
        self.wait_until_up()
        self.send(ClientHello(PROTOCOL_VERSION, self.name, self.incarnation, "inproc://nowhere", 2, self.index))
        welcome = self.expect(ClientWelcome)
        self.index = welcome.client_index
        return welcome

    def submit(self, request_id: str, token_ids: Sequence[int] = (1, 2, 3)) -> list[Frame]:
        """Submits a request; returns the frames sent."""
        request = EngineCoreRequest(
            RequestId(request_id), self.index, 0, MODEL.name, len(token_ids), SamplingParams(max_tokens=1), 0.0
        )
        frames = encode(request, pack_token_ids(token_ids))
        self.socket.send_multipart(frames)
        return frames

    def expect_alive(self, kind: type[M]) -> M:
        """Like `expect`, with heartbeats meanwhile."""
        for _ in range(PATIENCE_MS // HEARTBEAT_MS):
            self.send(Heartbeat())
            next_heartbeat_s = time.monotonic() + HEARTBEAT_MS / 1_000
            while self.socket.poll(max(0.0, (next_heartbeat_s - time.monotonic()) * 1_000)):
                message = self.receive().message
                if isinstance(message, kind):
                    return message
        raise TimeoutError(kind.__name__)


class Subscriber(Wire):
    """Somebody who listens to the cluster state."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", config: CoordinatorConfig) -> None:
        super().__init__(open_socket(context, SocketKind.SUBSCRIBER, config.cluster_address)[0], AT_SUBSCRIBER)  # type: ignore[arg-type]

    def wait_for_snapshot(self, engines: int, api_servers: int) -> ClusterSnapshot:
        """The first snapshot with so many members."""
        while True:
            snapshot = self.expect(ClusterSnapshot)
            if (len(snapshot.engines), len(snapshot.api_servers)) == (engines, api_servers):
                return snapshot
