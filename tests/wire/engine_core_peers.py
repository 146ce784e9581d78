"""An engine core's process, and the other ends of its links: a coordinator and an API server that obey a test."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import zmq
from role_process import LIMIT_S, RoleProcess, role_process

from protocol.addresses import ENGINES, ipc_address
from protocol.codec import AT_COORDINATOR_FROM_ENGINE, AT_OUTPUTS, Frame, Received, encode, pack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId, new_incarnation, new_request_id
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
        self,
        client: "FakeApiServer",
        prompt: list[int],
        sampling: SamplingParams,
        name: str = "",
        earlier_output: Sequence[int] = (),
    ) -> RequestKey:
        tokens = [*prompt, *earlier_output]
        request = EngineCoreRequest(
            RequestId(name) if name else new_request_id("test"),
            client.index,
            0,
            "sim",
            len(tokens),
            sampling,
            arrival_time_s=0.0,
            num_output_tokens=len(earlier_output),
        )
        client.first_positions[request.key] = len(earlier_output)
        self.send(request, pack_token_ids(tokens))
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
        self.first_positions: dict[RequestKey, int] = {}
        """Of requests that bring earlier output along."""
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
            position = self.first_positions.get(output.key, 0) + sum(len(earlier.token_ids) for earlier in before)
            assert output.position == position, "a position is missing"
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


@contextlib.contextmanager
def engine_core(coordinator_address: str, model: str, *flags: str) -> Iterator[RoleProcess]:
    """An engine core that is killed at the end if it has not ended by then."""
    with role_process("engine-core", "--engines-address", coordinator_address, "--model", model, *flags) as process:
        yield process
