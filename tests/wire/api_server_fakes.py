"""The other ends of an API server's sockets: a coordinator and an engine core that do what a test says."""

import asyncio
from pathlib import Path
from typing import TypeVar

import tokenizers
import zmq
import zmq.asyncio
from tokenizers import models

from protocol.addresses import CLIENTS, CLUSTER, ipc_address
from protocol.card import ModelCard, pack_card
from protocol.codec import AT_COORDINATOR_FROM_CLIENT, Frame, encode, unpack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Card,
    ClientHello,
    ClientWelcome,
    ClusterSnapshot,
    CoordinatorToClient,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineState,
    GetCard,
    Heartbeat,
    Load,
    Message,
    ModelInfo,
)
from protocol.sockets import SocketKind, open_socket

LIMIT_S = 10.0
ENGINE = Incarnation("engine-1")

CARD = ModelCard(
    name="tiny",
    max_model_len=64,
    vocab_size=8,
    tokenizer_json=tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "[unk]": 2}, unk_token="[unk]")).to_str(),
    eos_token_ids=(2,),
)
CARD_HASH, PACKED_CARD = pack_card(CARD)

M = TypeVar("M", bound=Message)


def engine_state(load: Load | None = None, incarnation: Incarnation = ENGINE, index: int = 0) -> EngineState:
    info = ModelInfo(CARD.name, CARD_HASH, CARD.max_model_len)
    return EngineState(EngineIndex(index), f"engine-{index}", incarnation, info, load or Load())


class FakeCoordinator:
    """Both sockets of a coordinator. Answers Hello, GetCard and subscriptions by itself, nothing else."""

    def __init__(self, context: zmq.asyncio.Context, directory: Path, incarnation: str = "coordinator-1") -> None:
        self.incarnation = Incarnation(incarnation)
        self.client_index = ClientIndex(7)
        self.engines = [engine_state()]
        self.hellos: list[ClientHello] = []
        self.heartbeats = 0
        self.snapshots = 0
        self.answers_hello = True
        self.packed_card = PACKED_CARD
        self._arrived: asyncio.Queue[tuple[Message, list[Frame]]] = asyncio.Queue()
        self._sequence = 0
        self._identity = b""
        self._clients, _ = open_socket(context, SocketKind.CLIENTS, ipc_address(directory, CLIENTS))
        self._cluster, _ = open_socket(context, SocketKind.PUBLISHER, ipc_address(directory, CLUSTER))
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch_subscriptions())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._clients.close(0)
        self._cluster.close(0)

    async def next(self, message_type: type[M]) -> M:
        """The next message of the API server, heartbeats aside, which must be of this type."""
        message, _ = await asyncio.wait_for(self._arrived.get(), LIMIT_S)
        assert isinstance(message, message_type), message
        return message

    async def next_prompt(self) -> tuple[EngineCoreRequest, list[int]]:
        message, buffers = await asyncio.wait_for(self._arrived.get(), LIMIT_S)
        assert isinstance(message, EngineCoreRequest)
        return message, unpack_token_ids(buffers[0]).tolist()

    async def nothing_more(self, within_s: float = 0.2) -> None:
        await asyncio.sleep(within_s)
        assert self._arrived.empty(), self._arrived.get_nowait()

    async def send(self, message: CoordinatorToClient, *buffers: Frame) -> None:
        await self._clients.send_multipart([self._identity, *encode(message, *buffers)])

    async def send_raw(self, *frames: bytes) -> None:
        await self._clients.send_multipart([self._identity, *frames])

    async def accept(self, request: EngineCoreRequest, incarnation: Incarnation = ENGINE) -> None:
        await self.send(Accepted(request.key, EngineIndex(0), incarnation))

    async def publish_snapshot(self) -> None:
        self._sequence += 1
        self.snapshots += 1
        await self._cluster.send_multipart(encode(ClusterSnapshot(self._sequence, self.incarnation, self.engines)))

    async def publish_raw(self, *frames: Frame) -> None:
        await self._cluster.send_multipart(list(frames))

    @property
    def sequence(self) -> int:
        return self._sequence

    async def _receive(self) -> None:
        while True:
            self._identity, *frames = await self._clients.recv_multipart()
            received = AT_COORDINATOR_FROM_CLIENT.decode(frames)
            match received.message:
                case ClientHello():
                    self.hellos.append(received.message)
                    if self.answers_hello:
                        await self.send(ClientWelcome(PROTOCOL_VERSION, self.incarnation, self.client_index))
                case GetCard(card_hash) if card_hash == CARD_HASH:
                    await self.send(Card(CARD_HASH), self.packed_card)
                case Heartbeat():
                    self.heartbeats += 1
                    await self.send(Heartbeat())
                case _:
                    self._arrived.put_nowait((received.message, list(received.buffers)))

    async def _watch_subscriptions(self) -> None:
        while True:
            (frame,) = await self._cluster.recv_multipart()
            if frame[:1] == b"\x01":
                await self.publish_snapshot()


class FakeEngineCore:
    """An engine core's way to one API server."""

    def __init__(self, context: zmq.asyncio.Context, output_address: str, incarnation: Incarnation = ENGINE) -> None:
        self.incarnation = incarnation
        self.client_index = ClientIndex(7)
        self.sequence = 0
        self._socket, _ = open_socket(context, SocketKind.OUTPUTS_OUT, output_address)

    async def push(self, *outputs: EngineCoreOutput, sequence: int | None = None) -> None:
        number = self.sequence if sequence is None else sequence
        self.sequence = number + 1
        message = EngineCoreOutputs(EngineIndex(0), self.incarnation, number, 0.0, list(outputs), self.client_index)
        await self._socket.send_multipart(encode(message))

    async def push_raw(self, *frames: bytes) -> None:
        await self._socket.send_multipart(list(frames))

    def close(self) -> None:
        self._socket.close(0)
