"""What is written and read, and how long anyone waits for it."""

from collections.abc import Sequence

import hypothesis.strategies as st
from block_samples import sample_chain, sample_data, sample_write
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_core import ssd_tier
from engine_core.device import BlockId
from engine_core.ssd_tier import BLOCKS_PER_READ, READ_TIMEOUT_S, BlockRead, BlocksRead, ReadBlock, SsdReport, SsdTier
from protocol.identifiers import RequestId
from protocol.messages import RequestKey

CHAIN, TOKENS = sample_chain(1, 20)
ONE, OTHER = RequestKey(RequestId("one")), RequestKey(RequestId("other"))


def answer(read: BlockRead, found: int) -> BlocksRead:
    blocks = [ReadBlock(TOKENS[read.place - 1 + number], sample_data(number)) for number in range(found)]
    return BlocksRead(read, blocks)


def ids(tier: SsdTier) -> Sequence[BlockId]:
    return [write.block_id for write in tier.take_writes()]


def test_a_block_is_written_when_the_plan_that_saves_it_is_done() -> None:
    tier, first, second = SsdTier(), sample_write(1), sample_write(2)
    tier.saved(first)
    tier.plan_taken([])
    tier.saved(second)
    assert ids(tier) == []
    tier.plan_taken([])
    tier.plan_done()
    assert ids(tier) == [first.block_id]
    tier.plan_done()
    assert ids(tier) == [second.block_id]
    assert ids(tier) == []


def test_a_block_that_a_plan_drops_is_not_asked_of_the_device_any_more() -> None:
    tier, writes = SsdTier(), [sample_write(name) for name in range(4)]
    tier.saved(writes[0])
    tier.saved(writes[1])
    tier.plan_taken([writes[1].block_id])
    tier.saved(writes[2])
    tier.plan_taken([writes[0].block_id])
    tier.plan_done()
    tier.plan_done()
    assert ids(tier) == [writes[2].block_id]


def test_what_is_on_disk_already_is_not_written_again() -> None:
    tier, write = SsdTier(), sample_write(1)
    tier.reported(SsdReport([write.block_hash], [], 10, 1, 0, 0))
    tier.saved(write)
    tier.plan_taken([])
    tier.plan_done()
    assert ids(tier) == []
    tier.reported(SsdReport([], [write.block_hash], 10, 1, 0, 0))
    tier.saved(write)
    tier.plan_taken([])
    tier.plan_done()
    assert ids(tier) == [write.block_id]


def test_a_chain_is_read_in_pieces() -> None:
    tier, most = SsdTier(), 12
    assert tier.is_coming(ONE, CHAIN, 1, most)
    (read,) = tier.take_reads(100.0)
    assert (read.parent, read.hashes, read.place) == (CHAIN[0], CHAIN[1 : 1 + BLOCKS_PER_READ], 1)
    assert tier.is_coming(ONE, CHAIN, 1, most) and tier.is_coming(OTHER, CHAIN, 1, most)
    assert tier.take_reads(100.0) == [], "it is asked for once, whoever waits"
    tier.read_done(answer(read, BLOCKS_PER_READ), taken=BLOCKS_PER_READ)
    assert tier.is_coming(ONE, CHAIN, 1 + BLOCKS_PER_READ, most)
    (read,) = tier.take_reads(100.0)
    assert (read.parent, read.hashes) == (CHAIN[BLOCKS_PER_READ], CHAIN[1 + BLOCKS_PER_READ : most + 1])
    assert tier.load().hits_tokens_total == BLOCKS_PER_READ * 64


def test_what_is_not_there_is_not_waited_for_again() -> None:
    tier = SsdTier()
    assert tier.is_coming(ONE, CHAIN, 1, 3)
    (read,) = tier.take_reads(0.0)
    tier.read_done(answer(read, 0), taken=0)
    assert not tier.is_coming(ONE, CHAIN, 1, 3)
    assert tier.is_coming(OTHER, CHAIN, 1, 3), "it may have been written since"
    (read,) = tier.take_reads(0.0)
    tier.read_done(answer(read, 2), taken=2)
    assert tier.is_coming(ONE, CHAIN, 3, 3), "another block"


def test_a_read_that_takes_too_long_is_not_waited_for_but_taken_when_it_comes() -> None:
    tier = SsdTier()
    assert tier.deadline_s is None
    assert tier.is_coming(ONE, CHAIN, 1, 3)
    assert tier.deadline_s is None, "the thread does not have it yet"
    (read,) = tier.take_reads(100.0)
    assert tier.deadline_s == 100.0 + READ_TIMEOUT_S
    tier.expire(99.0 + READ_TIMEOUT_S)
    assert tier.is_coming(ONE, CHAIN, 1, 3)
    tier.expire(100.0 + READ_TIMEOUT_S)
    tier.check_invariants()
    assert tier.deadline_s is None
    assert not tier.is_coming(ONE, CHAIN, 1, 3) and not tier.is_coming(OTHER, CHAIN, 1, 3)
    assert tier.take_reads(110.0) == [], "nor is it asked for twice"
    tier.read_done(answer(read, 1), taken=1)
    assert tier.load().hits_tokens_total == 64
    assert not tier.is_coming(ONE, CHAIN, 1, 3)


def test_many_at_once_take_turns_unless_the_disk_hangs() -> None:
    tier = SsdTier()
    chains = [sample_chain(name, 3)[0] for name in range(ssd_tier.MAX_READS + 1)]
    keys = [RequestKey(RequestId(f"r{name}")) for name in range(len(chains))]
    assert all(tier.is_coming(key, chain, 1, 3) for key, chain in zip(keys, chains, strict=True))
    reads = tier.take_reads(0.0)
    assert len(reads) == ssd_tier.MAX_READS
    tier.read_done(answer(reads[0], 1), taken=1)
    assert tier.is_coming(keys[-1], chains[-1], 1, 3)
    assert len(tier.take_reads(1.0)) == 1
    other = sample_chain(99, 3)[0]
    assert tier.is_coming(OTHER, other, 1, 3)
    tier.expire(READ_TIMEOUT_S)
    assert tier.is_coming(OTHER, other, 1, 3), "one has still time"
    tier.expire(1.0 + READ_TIMEOUT_S)
    assert not tier.is_coming(OTHER, other, 1, 3)


class TierMachine(RuleBasedStateMachine):
    """Requests look, reads end or do not, time passes: nobody waits longer than is said."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = SsdTier()
        self.now_s = 0.0
        self.open: list[BlockRead] = []
        self.waits_since: dict[tuple[RequestKey, int], float] = {}

    @rule(name=st.integers(0, 80), place=st.integers(1, 12))
    def look(self, name: int, place: int) -> None:
        key = RequestKey(RequestId(f"r{name}"))
        chain, _ = sample_chain(name % 70, 12)
        if self.tier.is_coming(key, chain, place, 12):
            if chain[place] not in self.tier._reading:
                assert len(self.tier._reading) == ssd_tier.MAX_READS, "it waits for its turn"
                return
            since_s = self.waits_since.setdefault((key, place), self.now_s)
            assert self.now_s - since_s <= READ_TIMEOUT_S + 1.0
        else:
            self.waits_since.pop((key, place), None)
        self.open += self.tier.take_reads(self.now_s)

    @rule(seconds=st.floats(0.1, 1.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.tier.expire(self.now_s)
        for key, place in list(self.waits_since):
            chain, _ = sample_chain(int(key.request_id[1:]) % 70, 12)
            if not self.tier.is_coming(key, chain, place, 12):
                del self.waits_since[key, place]
        self.open += self.tier.take_reads(self.now_s)
        assert all(self.now_s - since_s <= READ_TIMEOUT_S + 1.0 for since_s in self.waits_since.values())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        read = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        found = data.draw(st.integers(0, len(read.hashes)))
        self.tier.read_done(answer(read, found), data.draw(st.integers(0, found)))
        self.waits_since.clear()  # whoever looks again may ask again, for what others have not waited for in vain

    @invariant()
    def sound(self) -> None:
        self.tier.check_invariants()
        assert len(self.open) <= ssd_tier.MAX_READS
        deadline_s = self.tier.deadline_s
        assert deadline_s is None or deadline_s > self.now_s


TierMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTierMachine = TierMachine.TestCase
