"""The engine core with an SSD behind it, which here is a dictionary: what is kept, read again, and waited for."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from token_device import TokenDevice, output_alone

from engine_core.core import DRAIN_SETTLE_S, EngineCore
from engine_core.events import ClientsChanged, DrainRequested, RequestArrived, RequestsAborted
from engine_core.pool_lengths import pool_lengths
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.ssd_tier import READ_TIMEOUT_S, BlockRead, BlocksRead, ReadBlock, SsdReport, SsdTier
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, Load, RequestKey
from protocol.prefix_hash import BlockHash, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

ROWS, BUDGET = 4, 128


@dataclass
class Disk:
    """What outlives an engine core."""

    blocks: dict[BlockHash, ReadBlock] = field(default_factory=dict)

    def answer(self, read: BlockRead) -> BlocksRead:
        found: list[ReadBlock] = []
        for block_hash in read.hashes:
            if block_hash not in self.blocks:
                break
            found.append(self.blocks[block_hash])
        return BlocksRead(read, found)


class Bench:
    """A core, its device, and a thread that does what it does at once, unless it `hangs`."""

    def __init__(self, disk: Disk, *, lookahead: bool = False, kv_capacity_tokens: int = 16_384) -> None:
        limits = SchedulerLimits(
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            max_model_len=2_049,
            kv_capacity_tokens=kv_capacity_tokens,
            pool_lengths=pool_lengths(2_049),
        )
        self.disk = disk
        tier = SsdTier()
        self.core = EngineCore(Scheduler(limits, [], ssd=tier), 5.0, tier)
        self.core.handle(ClientsChanged({ClientIndex(0): "ipc:///a"}), 0.0)
        self.device = TokenDevice(kv_capacity_tokens, ROWS, BUDGET, limits.pool_lengths)
        self.most_ahead = int(lookahead)
        self.in_flight = 0
        self.now_s = 0.0
        self.hangs = False
        self.unanswered: list[BlockRead] = []
        self.prompts: dict[RequestKey, list[int]] = {}
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}

    def add(self, prompt: Sequence[int], salt: str = "") -> RequestKey:
        name = RequestId(f"r{len(self.prompts)}")
        sampling = SamplingParams(max_tokens=3, ignore_eos=True)
        request = EngineCoreRequest(name, ClientIndex(0), 0, "m", len(prompt), sampling, 0.0, cache_salt=salt)
        self.prompts[request.key] = list(prompt)
        chain = prefix_chain(prefix_root("m", "", salt), prompt)
        self.core.handle(RequestArrived(request, array("I", prompt), chain), self.now_s)
        return request.key

    def step(self) -> bool:
        """As the busy loop does; whether there was anything to do."""
        self.core.tick(self.now_s, 0.0)
        plan = self.core.plan()
        self.unanswered += self.core.take_reads(self.now_s)
        if plan is not None:
            self.device.submit(plan)
            self.in_flight += 1
        self.core.check_invariants()
        if self.in_flight and (plan is None or self.in_flight > self.most_ahead):
            self._collect()
        elif plan is None and not self.unanswered:
            return False
        if not self.hangs:
            self.answer()
        return True

    def answer(self) -> None:
        for read in self.unanswered:
            self.core.handle(self.disk.answer(read), self.now_s)
        self.unanswered = []
        self.core.check_invariants()

    def run(self) -> None:
        for _ in range(2_000):
            if not self.step():
                return
        raise AssertionError("it does not come to an end")

    def serve(self, prompt: Sequence[int], salt: str = "") -> int:
        """Runs a request to its end, which must be right; how many of its tokens were not computed."""
        key = self.add(prompt, salt)
        self.run()
        return self.cached_tokens(key)

    def cached_tokens(self, key: RequestKey) -> int:
        found = [token for output in self.outputs[key] for token in output.token_ids]
        assert found == output_alone(self.prompts[key], 3)
        return self.outputs[key][0].cached_tokens

    def load(self) -> Load:
        return self.core.take_status().load

    def _collect(self) -> None:
        self.in_flight -= 1
        for outputs in self.core.complete(self.device.collect(), self.now_s).values():
            for output in outputs:
                self.outputs.setdefault(output.key, []).append(output)
        added = []
        for write in self.core.take_writes():
            data = [memoryview(bytes(part)) for part in self.device.read_block(write.block_id)]
            self.disk.blocks[write.block_hash] = ReadBlock(write.token_ids, data)
            added.append(write.block_hash)
        if added:
            self.core.handle(SsdReport(added, [], 0, len(added), 0, 0), self.now_s)


def tokens(count: int, first: int = 0) -> list[int]:
    return [(first + number * 7) % 50 for number in range(count)]


@pytest.fixture(params=[False, True], ids=["one by one", "lookahead"])
def lookahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_after_a_restart_whole_blocks_are_read_again(lookahead: bool) -> None:
    disk = Disk()
    assert Bench(disk, lookahead=lookahead).serve(tokens(1_000)) == 0
    assert len(disk.blocks) == 1_000 // 64
    bench = Bench(disk, lookahead=lookahead)
    assert bench.serve([*tokens(1_000), 9]) == 960
    ssd = bench.load().ssd
    assert ssd is not None and ssd.hits_tokens_total == 960
    assert bench.device.prefilled_tokens == 40
    assert bench.serve([*tokens(1_000), 9]) == 960, "and now it is in RAM"
    ssd = bench.load().ssd
    assert ssd is not None and ssd.hits_tokens_total == 960


def test_a_prompt_of_whole_blocks_is_read_but_for_its_last_token() -> None:
    disk = Disk()
    Bench(disk).serve(tokens(640))
    bench = Bench(disk)
    assert bench.serve(tokens(640)) == 639
    assert bench.device.prefilled_tokens == 0


def test_what_had_to_make_way_in_ram_is_read_again(lookahead: bool) -> None:
    bench = Bench(Disk(), lookahead=lookahead, kv_capacity_tokens=4_096)
    assert bench.serve(tokens(600)) == 0
    for number in range(1, 8):
        assert bench.serve(tokens(600, first=number)) == 0
    assert bench.serve([*tokens(600), 9]) == 576


def test_requests_that_share_a_chain_share_the_read(lookahead: bool) -> None:
    disk = Disk()
    Bench(disk).serve(tokens(700))
    bench = Bench(disk, lookahead=lookahead)
    keys = [bench.add([*tokens(700), number]) for number in range(3)]
    bench.run()
    assert sorted(bench.cached_tokens(key) for key in keys) == [640, 700, 700]
    ssd = bench.load().ssd
    assert ssd is not None and ssd.hits_tokens_total == 640


def test_others_run_while_one_waits() -> None:
    disk = Disk()
    Bench(disk).serve(tokens(700))
    bench = Bench(disk)
    bench.hangs = True
    waiting = bench.add(tokens(700))
    bench.step()
    other = bench.add(tokens(20, first=3))
    for _ in range(10):
        bench.step()
        assert not bench.unanswered or waiting not in bench.outputs
    assert bench.cached_tokens(other) == 0
    bench.hangs = False
    bench.run()
    assert bench.cached_tokens(waiting) == 640


def test_a_disk_that_hangs_is_waited_for_until_the_time_is_up() -> None:
    disk = Disk()
    Bench(disk).serve(tokens(700))
    bench = Bench(disk)
    bench.hangs = True
    key = bench.add(tokens(700))
    bench.step()
    assert bench.core.plan() is None
    assert bench.core.idle_timeout_s(bench.now_s, 0.0) == READ_TIMEOUT_S
    bench.now_s = READ_TIMEOUT_S
    bench.core.tick(bench.now_s, 0.0)
    for _ in range(20):
        bench.step()
    assert bench.cached_tokens(key) == 0
    assert bench.core.idle_timeout_s(bench.now_s, 0.0) is None
    bench.answer()
    assert bench.serve([*tokens(700), 1]) == 640


def test_a_draining_engine_core_does_not_spin_while_it_waits_for_the_disk() -> None:
    bench = Bench(Disk())
    bench.hangs = True
    bench.add(tokens(700))
    bench.core.handle(DrainRequested(), 0.0)
    bench.step()
    assert bench.core.idle_timeout_s(0.0, 0.0) == DRAIN_SETTLE_S
    assert bench.core.idle_timeout_s(0.5, 0.0) == READ_TIMEOUT_S - 0.5


def test_one_that_is_aborted_while_it_waits_leaves_the_read_to_others() -> None:
    disk = Disk()
    Bench(disk).serve(tokens(700))
    bench = Bench(disk)
    bench.hangs = True
    key = bench.add(tokens(700))
    bench.step()
    bench.core.handle(RequestsAborted([key]), 0.0)
    bench.hangs = False
    bench.run()
    assert bench.outputs == {}
    bench.answer()
    assert bench.serve([*tokens(700), 1]) == 640


def test_nothing_of_a_request_with_a_salt_is_kept_or_looked_for() -> None:
    disk = Disk()
    bench = Bench(disk)
    assert bench.serve(tokens(300), salt="s") == 0
    assert disk.blocks == {}
    assert bench.serve(tokens(300), salt="s") == 256
    Bench(disk).serve(tokens(300))
    bench = Bench(disk)
    bench.hangs = True
    bench.add(tokens(300), salt="s")
    bench.step()
    assert bench.unanswered == []


def test_a_chain_that_is_damaged_in_the_middle_is_computed_from_there(lookahead: bool) -> None:
    disk = Disk()
    Bench(disk).serve(tokens(1_000))
    chain = prefix_chain(prefix_root("m", "", ""), tokens(1_000))
    del disk.blocks[chain[11]]
    bench = Bench(disk, lookahead=lookahead)
    assert bench.serve(tokens(1_000)) == 640
    assert set(chain[1:]) <= set(disk.blocks), "what was computed is kept again"


def test_a_memory_too_small_for_what_is_read_takes_what_fits(lookahead: bool) -> None:
    disk = Disk()
    Bench(disk).serve(tokens(2_000))
    bench = Bench(disk, lookahead=lookahead, kv_capacity_tokens=2_560)
    assert 0 < bench.serve(tokens(2_000)) <= 512


def test_whatever_the_disk_does_each_request_gets_what_it_gets_alone() -> None:
    hits = 0
    for seed in range(16):
        draw, disk = random.Random(seed), Disk()
        for _ in range(3):
            bench = Bench(disk, lookahead=seed % 2 == 1, kv_capacity_tokens=draw.choice([2_560, 4_096, 16_384]))
            live = random_life(bench, draw)
            bench.run()
            assert {key for key in live if bench.outputs[key][-1].finish_reason is not None} == live
            for key in live:
                bench.cached_tokens(key)
            ssd = bench.load().ssd
            assert ssd is not None
            hits += ssd.hits_tokens_total
    assert hits > 20_000


def random_life(bench: Bench, draw: random.Random) -> set[RequestKey]:
    """What may happen between two restarts; requests that were not aborted."""
    live = set[RequestKey]()
    for _ in range(200):
        chance = draw.random()
        if chance < 0.1:
            shared = tokens(draw.choice([0, 30, 64, 300, 900]), first=draw.randrange(2))
            live.add(bench.add([*shared, *tokens(9, draw.randrange(50))], salt=draw.choice(["", "", "s"])))
        elif chance < 0.13 and live:
            key = draw.choice(sorted(live, key=str))
            live.remove(key)
            bench.core.handle(RequestsAborted([key]), bench.now_s)
        elif chance < 0.2:
            bench.hangs = not bench.hangs
        elif chance < 0.25:
            bench.now_s += draw.choice([0.1, 1.0, READ_TIMEOUT_S])
        elif chance < 0.27 and bench.disk.blocks:
            lost = draw.choice(sorted(bench.disk.blocks))
            del bench.disk.blocks[lost]
            bench.core.handle(SsdReport([], [lost], 0, 0, 0, 0), bench.now_s)
        elif chance < 0.35:
            bench.answer()
        else:
            bench.step()
    bench.hangs = False
    bench.answer()
    return live


def test_changes_name_blocks_in_ram_and_on_the_ssd_once() -> None:
    bench = Bench(Disk(), kv_capacity_tokens=4_096)
    bench.serve(tokens(600))
    prefixes = bench.core._scheduler._prefixes
    changes = prefixes.take_changes()
    chain = prefix_chain(prefix_root("m", "", ""), tokens(600))
    assert changes == dict.fromkeys(chain[1:], True)
    for number in range(1, 8):
        bench.serve(tokens(600, first=number))
    changes = prefixes.take_changes()
    assert changes and not changes.keys() & set(chain), "still on the SSD"
    bench.core.handle(SsdReport([], chain[1:], 0, 0, 0, 0), 0.0)
    changes = prefixes.take_changes()
    assert changes and changes.keys() <= set(chain[1:]) and not any(changes.values())
