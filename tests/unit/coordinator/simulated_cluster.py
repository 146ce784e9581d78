"""A coordinator's core with engine cores that only count: a virtual clock, queues, and stores of blocks.

Each engine core computes prompts in the order of their arrival, so many tokens a second, then decodes each request in a
fixed time. It stores the blocks of what it computed, drops the ends of the prefixes that were longest unused when its
store is full, and tells all that to the coordinator as the protocol says.
"""

import heapq
import itertools
from collections.abc import Callable

import msgspec
from core_fixture import Core, FakeClient, FakeEngine, key

from coordinator.events import Command, Event
from protocol.codec import pack_token_ids
from protocol.messages import Accepted, Load, RouteReason
from protocol.prefix_hash import BLOCK_TOKENS, BlockKey, packed_block_keys, prefix_root, unpack_block_keys

PREFILL_TOKENS_PER_S = 2_000.0
DECODE_S = 1.0


class UncheckedCore(Core):
    """Checks its invariants when asked to: with thousands of blocks that takes longer than all else."""

    def handle(self, event: Event) -> list[Command]:
        self.commands = self.state.handle(event, self.now_s)
        return self.commands


class Cluster:
    """Owner of the clock."""

    def __init__(self, engines: int, total_blocks: int) -> None:
        self.core = UncheckedCore(max_requests=10_000)
        self.client = FakeClient(self.core)
        self.client.hello()
        self.engines = [CountingEngine(self, number, total_blocks // engines) for number in range(engines)]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        self.reasons: list[RouteReason] = []

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Does something later."""
        heapq.heappush(self._due, (self.core.now_s + delay_s, next(self._tie), action))

    def run(self) -> None:
        """Until nothing is left to be done."""
        while self._due:
            due_s, _, action = heapq.heappop(self._due)
            self.core.wait(0.0)
            self.core.now_s = max(self.core.now_s, due_s)
            for engine in self.engines:
                engine.heartbeat()
            self.client.heartbeat()
            action()
        self.core.state.check_invariants()

    def submit(self, name: str, prompt: list[int], output: list[int], then: Callable[[], None]) -> None:
        """Sends a request; `then` is called when it has ended."""
        keys = packed_block_keys(prefix_root("hash-of-small", "", ""), pack_token_ids(prompt))
        self.client.say(self.client.request(name, len(prompt)), pack_token_ids(prompt), keys)
        (accepted,) = [m for m in self.core.sent_to(self.client.identity) if isinstance(m, Accepted)]
        assert accepted.reason is not None
        self.reasons.append(accepted.reason)
        self.engines[accepted.engine_index].take(name, prompt, output, then)


class CountingEngine:
    """One engine core."""

    def __init__(self, cluster: Cluster, number: int, capacity: int) -> None:
        self._cluster = cluster
        self._engine = FakeEngine(cluster.core, f"engine-{number}", f"e{number}")
        self._engine.hello()
        self._engine.blocks(0, anew=True)
        self._capacity = capacity
        self._stored: dict[BlockKey, None] = {}
        """The longest unused first; of a prefix the end before the beginning."""
        self._told = 1
        self._received = 0
        self._free_s = 0.0
        self._queued_tokens = 0
        self._running = 0
        self._heard_s = cluster.core.now_s
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.requests = 0

    def heartbeat(self) -> None:
        """Once a second, as engine cores do."""
        if self._cluster.core.now_s >= self._heard_s + 1.0:
            self._report()

    def take(self, name: str, prompt: list[int], output: list[int], then: Callable[[], None]) -> None:
        """A request arrives."""
        self.requests += 1
        self._received += 1
        self._queued_tokens += len(prompt)
        self._running += 1
        now_s = self._cluster.core.now_s
        self._free_s = max(self._free_s, now_s)

        def computed() -> None:
            self._compute(prompt)
            self._cluster.at(DECODE_S, decoded)

        def decoded() -> None:
            self._store(prompt + output)
            self._running -= 1
            self._report(name)
            then()

        # What it finds stored is known when its turn comes; for the time it takes, what is there now will do.
        self._free_s += (len(prompt) - self._cached(prompt)) / PREFILL_TOKENS_PER_S
        self._cluster.at(self._free_s - now_s, computed)

    def _compute(self, prompt: list[int]) -> None:
        cached = self._cached(prompt)
        self.cached_tokens += cached
        self.computed_tokens += len(prompt) - cached
        self._queued_tokens -= len(prompt)
        self._store(prompt)
        self._report()

    def _cached(self, prompt: list[int]) -> int:
        keys = self._keys(prompt)[: (len(prompt) - 1) // BLOCK_TOKENS]
        return BLOCK_TOKENS * len(list(itertools.takewhile(self._stored.__contains__, keys)))

    def _keys(self, tokens: list[int]) -> list[BlockKey]:
        return unpack_block_keys(packed_block_keys(prefix_root("hash-of-small", "", ""), pack_token_ids(tokens)))

    def _store(self, tokens: list[int]) -> None:
        keys = self._keys(tokens)
        new = [each for each in keys if each not in self._stored]
        for each in reversed(keys):
            self._stored.pop(each, None)
            self._stored[each] = None
        evicted = list(itertools.islice(self._stored, max(0, len(self._stored) - self._capacity)))
        for each in evicted:
            del self._stored[each]
        self._engine.blocks(self._told, b"".join(set(new) - set(evicted)), b"".join(evicted))
        self._told += 1

    def _report(self, *ended: str) -> None:
        self._heard_s = self._cluster.core.now_s
        load = Load(running=self._running, queued_prefill_tokens=self._queued_tokens)
        self._engine.report(load, self._received, [key(name) for name in ended])


class Session(msgspec.Struct):
    """A conversation: each turn's prompt is all that was said before, and something new."""

    name: str
    history: list[int]
    turns: list[tuple[list[int], list[int]]]
    """New tokens of the caller and of the answer."""
    pause_s: float

    def start(self, cluster: Cluster) -> None:
        """Takes its turns, one after the other, from now on."""
        if not self.turns:
            return
        asked, answered = self.turns.pop(0)
        prompt = self.history + asked
        self.history = prompt + answered
        name = f"{self.name}-{len(self.turns)}"
        cluster.submit(name, prompt, answered, lambda: cluster.at(self.pause_s, lambda: self.start(cluster)))
