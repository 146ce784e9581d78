"""What a real engine core process (simulated device) tells of the blocks that it stores and evicts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from engine_core_peers import FakeApiServer, FakeCoordinator, engine_core

from protocol.codec import pack_token_ids
from protocol.messages import BlocksChanged, EngineHello, EngineWelcome, GetBlocks, LoadReport
from protocol.prefix_hash import BlockKey, packed_block_keys, prefix_root, unpack_block_keys
from protocol.sampling import SamplingParams

SMALL = "sim:decode_ms=1,prefill_ms_per_token=0.01,kv_capacity_tokens=2048,max_model_len=512"
"""Room for 32 blocks of 64 tokens, or rows."""


@pytest.fixture
def context() -> Iterator[zmq.SyncContext]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def coordinator(context: zmq.SyncContext, tmp_path: Path) -> FakeCoordinator:
    return FakeCoordinator(context, tmp_path)


@pytest.fixture
def client(context: zmq.SyncContext, tmp_path: Path) -> FakeApiServer:
    return FakeApiServer(context, tmp_path)


class Listener:
    """Knows what is stored by what it was told, and checks the numbers."""

    def __init__(self, coordinator: FakeCoordinator) -> None:
        self._coordinator = coordinator
        self._next_sequence = 0
        self.stored: set[BlockKey] = set()
        self.evicted = 0

    def take_until(self, ended: object) -> None:
        """Until the end of a request is reported."""
        while True:
            received = self._coordinator.receive()
            if isinstance(received.message, BlocksChanged):
                self.take(received.message, [bytes(buffer) for buffer in received.buffers])
            elif isinstance(received.message, LoadReport) and ended in received.message.finished:
                return

    def take(self, change: BlocksChanged, buffers: list[bytes]) -> None:
        assert change.sequence == self._next_sequence
        self._next_sequence += 1
        stored, evicted = (unpack_block_keys(buffer) for buffer in buffers)
        self.stored = (set() if change.anew else self.stored - set(evicted)) | set(stored)
        self.evicted += len(evicted)


def prompt(number: int) -> list[int]:
    return [number % 256] * 300


def keys(hello: EngineHello, number: int) -> set[BlockKey]:
    packed = packed_block_keys(prefix_root(hello.model.card_hash, "", ""), pack_token_ids(prompt(number)))
    return set(unpack_block_keys(packed))


def test_stored_and_evicted_blocks_are_told_before_the_end_of_their_request(
    coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    with engine_core(coordinator.address, SMALL):
        hello = coordinator.welcome(client)
        listener = Listener(coordinator)
        for number in range(12):
            listener.take_until(coordinator.request(client, prompt(number), SamplingParams(max_tokens=2)))
            assert keys(hello, number) <= listener.stored
        assert listener.evicted > 0
        assert len(listener.stored) <= 32
        assert not keys(hello, 0) & listener.stored, "the first had to make way"

        coordinator.send(GetBlocks())
        change, buffers = coordinator.expect(BlocksChanged)
        told = set(listener.stored)
        listener.take(change, [bytes(buffer) for buffer in buffers])
        assert change.anew and listener.stored == told

        coordinator.send(EngineWelcome(1, coordinator.incarnation, hello.engine_index))
        change, buffers = coordinator.expect(BlocksChanged)
        listener.take(change, [bytes(buffer) for buffer in buffers])
        assert change.anew and listener.stored == told


def test_who_keeps_no_prefixes_tells_of_none(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, SMALL, "--prefix-caching", "false"):
        coordinator.welcome(client)
        key = coordinator.request(client, prompt(1), SamplingParams(max_tokens=2))
        while True:
            message = coordinator.receive().message
            assert not isinstance(message, BlocksChanged)
            if isinstance(message, LoadReport) and key in message.finished:
                break
