"""What of prompts each engine core has: the blocks that it said it stored, and those that are on their way to it.

A request that was just sent will make its blocks appear where it was sent: they count as there at once (*expected*),
so that a burst of prompts that begin alike goes to one place, and no longer than the request lives. An engine core
tells of stored blocks before it tells that a request has ended, so nothing is missing in between.

It is knowledge for a choice, no promise: when it is wrong, by a report on its way or at the limit, a prompt is computed
where it need not have been, and its answer is the same.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from coordinator.events import Identity
from protocol.messages import BlocksChanged, RequestKey
from protocol.prefix_hash import BlockKey

MAX_BLOCKS = 2_000_000
"""Blocks known, of all engine cores, stored or expected: 200 MB (101 bytes each). At the limit the engine core that has
most forgets those that it told of first; what is expected beyond it is not noted."""
FORGOTTEN_PART = 100
"""At the limit one in so many is forgotten at once: finding the first entries of a dict from which many were taken is
slow."""

MAX_ENDS = 65_536
"""Blocks of an engine core at which requests are counted (see Match); at the limit the one counted longest ago goes."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """What an engine core has of a prompt."""

    blocks: int = 0
    """From the first on."""
    requests: int = 0
    """Requests that were sent there and had just these blocks in common with what was there: what many begin with and
    then go on differently (a system prompt, say) has many, what one conversation has said has one or none."""


class EngineBlocks:
    """Owner of what is known of one engine core."""

    def __init__(self) -> None:
        self._stored: dict[BlockKey, None] = {}
        """In the order in which they were told."""
        self._expected: dict[BlockKey, RequestKey] = {}
        """Blocks not stored yet, each with the request that brings it."""
        self._of_request: dict[RequestKey, list[BlockKey]] = {}
        self._ends: OrderedDict[BlockKey, int] = OrderedDict()
        """Requests by the last block that was there when they were sent; the one counted last is at the end."""

    def __len__(self) -> int:
        return len(self._stored) + len(self._expected)

    def match(self, keys: Sequence[BlockKey]) -> Match:
        """What is there of a prompt."""
        blocks = self._matched(keys)
        return Match(blocks, self._ends.get(keys[blocks - 1], 0)) if blocks else Match()

    def _matched(self, keys: Sequence[BlockKey]) -> int:
        """An engine core stores no block without those before it, so it is found by halving, in 10 steps for 1,000."""
        stored, expected = self._stored, self._expected
        present, missing = -1, len(keys)
        while missing - present > 1:
            middle = (present + missing) // 2
            key = keys[middle]
            if key in stored or key in expected:
                present = middle
            else:
                missing = middle
        return present + 1

    def expect(self, request: RequestKey, keys: Sequence[BlockKey], room: int) -> None:
        """A request was sent there that will bring these blocks; at most `room` new ones are noted."""
        blocks = self._matched(keys)
        if blocks:
            self._count(keys[blocks - 1])
        new = keys[blocks : blocks + max(0, room)]
        if new:
            self._expected.update(dict.fromkeys(new, request))
            self._of_request[request] = list(new)

    def _count(self, key: BlockKey) -> None:
        self._ends[key] = self._ends.pop(key, 0) + 1
        if len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)

    def ended(self, request: RequestKey) -> None:
        """What it has not brought will not come."""
        for key in self._of_request.pop(request, ()):
            if self._expected.get(key) == request:
                del self._expected[key]

    def stored(self, keys: Iterable[BlockKey]) -> None:
        """It has them now."""
        for key in keys:
            self._expected.pop(key, None)
            self._stored[key] = None

    def evicted(self, keys: Iterable[BlockKey]) -> None:
        """It has them no more."""
        for key in keys:
            self._stored.pop(key, None)

    def clear_stored(self) -> None:
        """What is stored will be told anew."""
        self._stored.clear()

    def forget_first(self, count: int) -> None:
        """Forgets so many stored blocks, those that were told of first."""
        for key in list(islice(self._stored, count)):
            del self._stored[key]

    @property
    def num_stored(self) -> int:
        """Blocks that it has said it stored."""
        return len(self._stored)

    def check_invariants(self) -> None:
        """Raises AssertionError when something is expected of no request."""
        assert len(self._ends) <= MAX_ENDS
        assert not self._stored.keys() & self._expected.keys()
        assert all(key in self._of_request[request] for key, request in self._expected.items())


class _Member(msgspec.Struct):
    blocks: EngineBlocks
    next_sequence: int
    complete: bool
    """Whether nothing that it told was missed."""


class BlockIndex:
    """Owner of what is known of all engine cores that store prefixes."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._members: dict[Identity, _Member] = {}
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def told(
        self, engine: Identity, change: BlocksChanged, stored: Sequence[BlockKey], evicted: Sequence[BlockKey]
    ) -> bool:
        """Takes in what an engine core says; returns False when it must be asked for the whole."""
        member = self._members.get(engine)
        if change.anew:
            member = self._begin(engine, change.sequence)
        elif member is None or not member.complete:
            return member is not None  # the whole was asked for and is to come
        elif change.sequence != member.next_sequence:
            self._distrust(member)
            return False
        member.next_sequence = change.sequence + 1
        before = len(member.blocks)
        member.blocks.evicted(evicted)
        member.blocks.stored(stored)
        self._num_blocks += len(member.blocks) - before
        self._keep_to_limit()
        return True

    def match(self, engine: Identity, keys: Sequence[BlockKey]) -> Match:
        """What an engine core has of a prompt; nothing if it stores none."""
        member = self._members.get(engine)
        return Match() if member is None else member.blocks.match(keys)

    def expect(self, engine: Identity, request: RequestKey, keys: Sequence[BlockKey]) -> None:
        """A request was sent there that will bring these blocks, if it stores any."""
        member = self._members.get(engine)
        if member is not None:
            before = len(member.blocks)
            member.blocks.expect(request, keys, self._max_blocks - self._num_blocks)
            self._num_blocks += len(member.blocks) - before

    def ended(self, engine: Identity, request: RequestKey) -> None:
        """A request is no longer there."""
        member = self._members.get(engine)
        if member is not None:
            before = len(member.blocks)
            member.blocks.ended(request)
            self._num_blocks += len(member.blocks) - before

    def leave(self, engine: Identity) -> None:
        """An engine core is gone, and all that it had."""
        member = self._members.pop(engine, None)
        if member is not None:
            self._num_blocks -= len(member.blocks)

    def _begin(self, engine: Identity, sequence: int) -> _Member:
        member = self._members.setdefault(engine, _Member(EngineBlocks(), sequence, complete=True))
        self._num_blocks -= member.blocks.num_stored
        member.blocks.clear_stored()
        member.complete = True
        return member

    def _distrust(self, member: _Member) -> None:
        self._num_blocks -= member.blocks.num_stored
        member.blocks.clear_stored()
        member.complete = False

    def _keep_to_limit(self) -> None:
        while self._num_blocks > self._max_blocks:
            most = max((member.blocks for member in self._members.values()), key=lambda blocks: blocks.num_stored)
            excess = self._num_blocks - self._max_blocks + self._max_blocks // FORGOTTEN_PART
            before = len(most)
            most.forget_first(excess)
            self._num_blocks -= before - len(most)

    def check_invariants(self) -> None:
        """Raises AssertionError when the sum is wrong or the limit is broken."""
        assert self._num_blocks == sum(len(member.blocks) for member in self._members.values()) <= self._max_blocks
        for member in self._members.values():
            member.blocks.check_invariants()

    def members(self) -> set[Identity]:
        """The engine cores that store prefixes."""
        return set(self._members)
