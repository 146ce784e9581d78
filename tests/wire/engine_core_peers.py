"""The other ends of an engine core's links, for tests: a coordinator and an API server that do what they are told."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from protocol.addresses import ENGINES, ipc_address
from protocol.codec import AT_COORDINATOR_FROM_ENGINE, AT_OUTPUTS, Frame, Received, encode, pack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId, new_incarnation, new_request_id
from protocol.lifeline import LIFELINE_FD, Notice
from protocol.messages import (
    PROTOCOL_VERSION,
    ClientAddress,
    Clients,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHello,
    EngineWelcome,
    Message,
    RequestKey,
)
from protocol.sampling import SamplingParams
from protocol.sockets import SocketKind, open_socket

LIMIT_S = 20.0
M = TypeVar("M", bound=Message)


class FakeCoordinator:
    """A ROUTER on the engines address; answers a Hello with Welcome and the given clients."""

    def __init__(self, context: zmq.SyncContext, run_directory: Path) -> None:
        self.address = ipc_address(run_directory, ENGINES)
        self.incarnation = new_incarnation()
        self.socket, _ = open_socket(context, SocketKind.ENGINES, self.address)
        self.peer = b""
        self.wakes = 0

    def receive(self, limit_s: float = LIMIT_S) -> Received[Message]:
        assert self.socket.poll(limit_s * 1_000), "nothing came from the engine core"
        self.peer, *frames = self.socket.recv_multipart()
        self.wakes += 1
        return AT_COORDINATOR_FROM_ENGINE.decode(frames)  # type: ignore[return-value]

    def expect(self, kind: type[M], limit_s: float = LIMIT_S) -> tuple[M, list[Frame]]:
        """The next message of this type; those before it are passed over."""
        deadline = time.monotonic() + limit_s
        while True:
            received = self.receive(max(0.0, deadline - time.monotonic()))
            if isinstance(received.message, kind):
                return received.message, list(received.buffers)

    def send(self, message: Message, *buffers: Frame) -> None:
        self.socket.send_multipart([self.peer, *encode(message, *buffers)])

    def send_raw(self, *frames: bytes) -> None:
        self.socket.send_multipart([self.peer, *frames])

    def welcome(self, *clients: "FakeApiServer", want_card: bool = False) -> EngineHello:
        """Waits for the Hello and answers it."""
        hello, _ = self.expect(EngineHello)
        self.send(EngineWelcome(PROTOCOL_VERSION, self.incarnation, EngineIndex(0), want_card))
        self.send_clients(*clients)
        return hello

    def send_clients(self, *clients: "FakeApiServer") -> None:
        self.send(Clients([ClientAddress(client.index, client.address) for client in clients]))

    def request(
        self, client: "FakeApiServer", prompt: list[int], sampling: SamplingParams, name: str = ""
    ) -> RequestKey:
        request = EngineCoreRequest(
            RequestId(name) if name else new_request_id("test"),
            client.index,
            0,
            "sim",
            len(prompt),
            sampling,
            arrival_time_s=0.0,
        )
        self.send(request, pack_token_ids(prompt))
        return request.key

    def close(self) -> None:
        self.socket.close(0)


class FakeApiServer:
    """A PULL that collects outputs by request, and checks that nothing is lost on the way."""

    def __init__(self, context: zmq.SyncContext, run_directory: Path, index: int = 0) -> None:
        self.index = ClientIndex(index)
        self.address = ipc_address(run_directory, f"outputs-{index}")
        self.socket, _ = open_socket(context, SocketKind.OUTPUTS_IN, self.address)
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}
        self._next_sequence = 0
        self._incarnation = Incarnation("")

    def receive(self, limit_s: float = LIMIT_S) -> EngineCoreOutputs | None:
        """The next message; None when nothing comes in time."""
        if not self.socket.poll(limit_s * 1_000):
            return None
        message = AT_OUTPUTS.decode(self.socket.recv_multipart()).message
        if message.incarnation != self._incarnation:
            self._incarnation, self._next_sequence = message.incarnation, 0
        assert message.sequence == self._next_sequence, "outputs were lost"
        self._next_sequence += 1
        for output in message.outputs:
            before = self.outputs.setdefault(output.key, [])
            assert output.position == sum(len(earlier.token_ids) for earlier in before), "a position is missing"
            before.append(output)
        return message

    def wait_end(self, *keys: RequestKey) -> list[EngineCoreOutput]:
        """The last output of each request."""
        while not all(self.has_ended(key) for key in keys):
            assert self.receive() is not None, "no more outputs come"
        return [self.outputs[key][-1] for key in keys]

    def wait_tokens(self, key: RequestKey, count: int) -> None:
        while len(self.tokens(key)) < count:
            assert self.receive() is not None, "no more outputs come"

    def has_ended(self, key: RequestKey) -> bool:
        return bool(self.outputs.get(key)) and self.outputs[key][-1].finish_reason is not None

    def tokens(self, key: RequestKey) -> list[int]:
        return [token for output in self.outputs.get(key, []) for token in output.token_ids]

    def close(self) -> None:
        self.socket.close(0)


class EngineCoreProcess:
    """A real engine core, with its lifeline."""

    def __init__(self, coordinator_address: str, model: str, *flags: str) -> None:
        self._lifeline, theirs = socket.socketpair()
        arguments = ["--engines-address", coordinator_address, "--model", model, *flags]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", "engine-core", *arguments],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, LIFELINE_FD: str(theirs.fileno()), "HF_HUB_OFFLINE": "1"},
            )
        self._lifeline.settimeout(LIMIT_S)
        self._notices = self._lifeline.makefile("rb")

    def expect_notice(self, state: str) -> Notice:
        """The next notice of this state."""
        for line in self._notices:
            notice = msgspec.json.decode(line, type=Notice)
            if notice.state == state:
                return notice
        raise AssertionError(f"the lifeline ended without {state!r}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Exit code and log."""
        _, log = self.process.communicate(timeout=limit_s)
        return self.process.returncode, log

    def cpu_s(self) -> float:
        """User and system time so far (proc(5))."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wake_ups(self) -> int:
        """Times that a thread of it went to sleep so far (proc(5))."""
        statuses = [path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/status")]
        return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[0]) for text in statuses)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._notices.close()
        self._lifeline.close()


@contextlib.contextmanager
def engine_core(coordinator_address: str, model: str, *flags: str) -> Iterator[EngineCoreProcess]:
    """An engine core that is killed at the end if it has not ended by then."""
    engine = EngineCoreProcess(coordinator_address, model, *flags)
    try:
        yield engine
    finally:
        engine.close()
