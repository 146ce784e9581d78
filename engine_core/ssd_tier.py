"""Which blocks are written to the SSD and read back, and who waits for that. Pure; engine_core.ssd_thread does it.

Every block that is stored in RAM is written as soon as the step that saved it is done, and not only when it has to
make way: so what one process has computed is there for the others on the machine, and after a restart, however it
ended. Where the disk cannot follow, blocks are left out (the thread's queue is bounded); nothing waits for a write.

Blocks of requests with a cache salt stay in RAM: their tokens would stand in a file beside a name that does not hide
them from whoever can read the file, and a salt is given by those who do not want their prompts where others look.

A request waits for a read, a piece of the chain after the other, while others run. It waits for each piece once, and
no longer than READ_TIMEOUT_S; what was not there by then is computed.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import msgspec

from engine_core.device import BlockData, BlockId
from protocol.messages import RequestKey, SsdLoad
from protocol.prefix_hash import BlockHash

BLOCKS_PER_READ = 8
"""A piece of 512 tokens is taken into RAM, which may have to make room for it, before the next is read. The busy loop
copies it: 64 MB with 8 MB a block, which takes some 10 ms."""
MAX_READS = 8
"""Pieces asked for and not there yet, which take memory beside the KV cache's: 0.5 GB with 8 MB a block. Who wants one
more waits for one of them to come."""
READ_TIMEOUT_S = 2.0
"""For a piece, from when it is asked for: 64 MB with 8 MB a block; a disk of less than 30 MB/s is no gain."""
REMEMBERED = 1_024
"""Requests whose last vain read is remembered: more than the scheduler looks at in a step."""


class BlockWrite(msgspec.Struct, frozen=True):
    """Keep this block of the device in a file."""

    block_id: BlockId
    block_hash: BlockHash
    parent: BlockHash
    token_ids: Sequence[int]


class BlockRead(msgspec.Struct, frozen=True):
    """Read these blocks, one behind the other, as far as they are there."""

    parent: BlockHash
    """Of the first; the root of the chain when `place` is 1."""
    hashes: Sequence[BlockHash]
    place: int
    """Of the first in its chain, from 1."""


class ReadBlock(msgspec.Struct, frozen=True):
    """A block as it was written."""

    token_ids: Sequence[int]
    data: BlockData


class BlocksRead(msgspec.Struct, frozen=True):
    """The end of a BlockRead."""

    read: BlockRead
    blocks: list[ReadBlock]
    """The first ones, up to one that is missing or damaged."""


class SsdReport(msgspec.Struct, frozen=True):
    """What the thread has done to the folder since its last report, and its counts since the start."""

    added: list[BlockHash]
    """None of them is in `removed`."""
    removed: list[BlockHash]
    nbytes: int
    """Size of the folder."""
    written_total: int
    skipped_total: int
    """Blocks that were not written: the disk was slow, or full."""
    damaged_total: int
    """Files that were dropped because they did not hold what they should."""


class _Reading:
    __slots__ = ("deadline_s", "is_late", "waiting")

    def __init__(self) -> None:
        self.waiting: set[RequestKey] = set()
        self.deadline_s: float | None = None
        """None until the thread has it."""
        self.is_late = False


class SsdTier:
    """Owner of what is to be written and read, and of what is known to be on the SSD."""

    def __init__(self) -> None:
        self.report = SsdReport([], [], 0, 0, 0, 0)
        """The newest."""
        self.read_tokens_total = 0
        self.on_disk: set[BlockHash] = set()
        self._new: dict[BlockId, BlockWrite] = {}
        self._in_flight: deque[dict[BlockId, BlockWrite]] = deque()
        """By plan, the oldest first: what it saves."""
        self._ready: dict[BlockId, BlockWrite] = {}
        self._reading: dict[BlockHash, _Reading] = {}
        """By the first block of the piece."""
        self._wanted: list[BlockRead] = []
        self._in_vain: OrderedDict[RequestKey, BlockHash] = OrderedDict()
        """For which block each request has waited and got nothing."""

    # --- writes -------------------------------------------------------------------------------------------------

    def saved(self, write: BlockWrite) -> None:
        """The plan in the making saves this block."""
        if write.block_hash not in self.on_disk:
            self._new[write.block_id] = write

    def plan_taken(self, drops: Iterable[BlockId]) -> None:
        """The plan in the making was taken; what it drops can be read from the device no more."""
        self._in_flight.append(self._new)
        self._new = {}
        for block_id in drops:
            for writes in (*self._in_flight, self._ready):
                writes.pop(block_id, None)

    def plan_done(self) -> None:
        """The oldest plan was run: what it saved can be read from the device."""
        self._ready.update(self._in_flight.popleft())

    def take_writes(self) -> list[BlockWrite]:
        """To be read from the device before the next plan is taken."""
        writes, self._ready = self._ready, {}
        return list(writes.values())

    def reported(self, report: SsdReport) -> tuple[set[BlockHash], set[BlockHash]]:
        """News from the thread. Returns the blocks that are on the SSD only now, and those that no longer are."""
        self.report = report
        gone = self.on_disk.intersection(report.removed)
        come = set(report.added) - self.on_disk
        self.on_disk -= gone
        self.on_disk |= come
        return come, gone

    # --- reads --------------------------------------------------------------------------------------------------

    def is_coming(self, key: RequestKey, chain: Sequence[BlockHash], place: int, most: int) -> bool:
        """Whether the block `chain[place]`, which is not in RAM, is on its way, or is asked for now for this request.

        `most`: the last block that the request can use.
        """
        first = chain[place]
        reading = self._reading.get(first)
        if reading is None:
            if self._in_vain.get(key) == first:
                return False
            if len(self._reading) == MAX_READS:
                return not all(other.is_late for other in self._reading.values())
            reading = self._reading[first] = _Reading()
            self._wanted.append(
                BlockRead(chain[place - 1], chain[place : min(place + BLOCKS_PER_READ, most + 1)], place)
            )
        if reading.is_late:
            return False
        reading.waiting.add(key)
        return True

    @property
    def deadline_s(self) -> float | None:
        """When `expire` is to be called at the latest; None while nothing is read."""
        deadlines = (r.deadline_s for r in self._reading.values() if r.deadline_s is not None and not r.is_late)
        return min(deadlines, default=None)

    def take_reads(self, now_s: float) -> list[BlockRead]:
        """For the thread."""
        reads, self._wanted = self._wanted, []
        for read in reads:
            self._reading[read.hashes[0]].deadline_s = now_s + READ_TIMEOUT_S
        return reads

    def expire(self, now_s: float) -> None:
        """Nobody waits for reads any more whose time is up."""
        for first, reading in self._reading.items():
            if reading.deadline_s is not None and reading.deadline_s <= now_s and not reading.is_late:
                reading.is_late = True
                self._give_up(first, reading)

    def read_done(self, done: BlocksRead, taken: int) -> None:
        """The end of a read, of which `taken` blocks are in RAM now."""
        reading = self._reading.pop(done.read.hashes[0])
        self.read_tokens_total += sum(len(block.token_ids) for block in done.blocks[:taken])
        if taken == 0:
            self._give_up(done.read.hashes[0], reading)

    def _give_up(self, first: BlockHash, reading: _Reading) -> None:
        for key in reading.waiting:
            self._in_vain[key] = first
            self._in_vain.move_to_end(key)
        reading.waiting.clear()
        while len(self._in_vain) > REMEMBERED:
            self._in_vain.popitem(last=False)

    def load(self) -> SsdLoad:
        """What the coordinator is told."""
        report = self.report
        return SsdLoad(
            report.nbytes, self.read_tokens_total, report.written_total, report.skipped_total, report.damaged_total
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert len(self._reading) <= MAX_READS
        assert len(self._in_vain) <= REMEMBERED
        assert all(self._reading[read.hashes[0]].deadline_s is None for read in self._wanted)
        assert all(not (reading.is_late and reading.waiting) for reading in self._reading.values())
