"""What is computed once is not computed again: prefixes saved, restored, shared, and given up for rows."""

import random
from array import array
from collections.abc import Sequence

import pytest
from token_device import VOCABULARY, TokenDevice, output_alone

from engine_core.pool_lengths import pool_lengths
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.prefix_hash import BLOCK_TOKENS, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

ROWS, BUDGET = 8, 128


def tokens(count: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]


class Bench:
    """A scheduler and a device that checks each plan; prompts are stored and looked up unless `stores` is false."""

    def __init__(self, kv_capacity_tokens: int = 65_536, growth: int = 128, stores: bool = True) -> None:
        limits = SchedulerLimits(
            max_num_seqs=ROWS,
            max_num_batched_tokens=BUDGET,
            max_model_len=min(4_097, kv_capacity_tokens + 1),
            kv_capacity_tokens=kv_capacity_tokens,
            pool_lengths=pool_lengths(min(4_097, kv_capacity_tokens + 1)),
            growth_tokens=growth,
        )
        self.scheduler = Scheduler(limits, [])
        self.device = TokenDevice(kv_capacity_tokens, ROWS, BUDGET, limits.pool_lengths)
        self.stores = stores
        self.prompts: dict[RequestKey, list[int]] = {}
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}

    def add(
        self, prompt: Sequence[int], max_tokens: int = 3, salt: str = "", priority: int = 0, client: int = 0
    ) -> RequestKey:
        name = RequestId(f"r{len(self.prompts)}")
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = EngineCoreRequest(name, ClientIndex(client), 0, "m", len(prompt), sampling, 0.0, priority, salt)
        self.prompts[request.key] = list(prompt)
        chain = prefix_chain(prefix_root("m", "", salt), prompt) if self.stores else ()
        assert self.scheduler.add(request, array("I", prompt), chain) == {}
        return request.key

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            plan = self.scheduler.plan()
            self.scheduler.check_invariants()
            outputs = self.scheduler.update(self.device.run(plan))
            for output in (output for outs in outputs.values() for output in outs):
                self.outputs.setdefault(output.key, []).append(output)
            self.scheduler.check_invariants()

    def run(self) -> None:
        for _ in range(5_000):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("it does not come to an end")

    def serve(self, prompt: Sequence[int], max_tokens: int = 3, salt: str = "") -> int:
        """Runs a request alone to its end, which must be right; how many of its tokens were stored."""
        key = self.add(prompt, max_tokens, salt)
        self.run()
        self.check(key)
        return self.cached_tokens(key)

    def check(self, *keys: RequestKey) -> None:
        for key in keys:
            outputs = self.outputs[key]
            found = [token for output in outputs for token in output.token_ids]
            assert found == output_alone(self.prompts[key], len(found))
            assert outputs[-1].finish_reason is FinishReason.LENGTH

    def cached_tokens(self, key: RequestKey) -> int:
        first, *later = self.outputs[key]
        assert not any(output.cached_tokens for output in later)
        return first.cached_tokens

    def __getitem__(self, key: RequestKey) -> int:
        """How many tokens it has got."""
        return len(self.outputs.get(key, []))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 66, 127, 128, 129, 130, 200])
def test_all_before_the_last_token_that_is_in_whole_blocks_with_the_output_is_found_again(length: int) -> None:
    bench = Bench()
    assert bench.serve(tokens(length)) == 0
    assert bench.serve(tokens(length)) == min(length - 1, (length + 2) // BLOCK_TOKENS * BLOCK_TOKENS)
    load = bench.scheduler.load()
    assert load.prefix_queries_tokens_total == 2 * length
    assert load.prefix_hits_tokens_total == bench.device.restored_tokens == bench.cached_tokens(RequestKey("r1"))
    assert load.prompt_tokens_total == 2 * length - bench.device.restored_tokens


def test_generated_tokens_are_stored_too() -> None:
    bench = Bench()
    prompt = tokens(50)
    assert bench.serve(prompt, max_tokens=100) == 0
    conversation = [*prompt, *output_alone(prompt, 100), *tokens(20, seed=2)]
    assert bench.serve(conversation) == 128, "149 tokens of the first turn were computed, the last one never"


def test_salts_do_not_share() -> None:
    bench = Bench()
    assert [bench.serve(tokens(100), salt=salt) for salt in ("a", "b", "", "a", "b", "")] == [0, 0, 0, 64, 64, 64]


def test_without_a_chain_nothing_is_stored() -> None:
    bench = Bench(stores=False)
    assert [bench.serve(tokens(300)), bench.serve(tokens(300))] == [0, 0]
    assert bench.device.blocks == {}
    assert bench.scheduler.load().prefix_queries_tokens_total == 0


def test_a_prefix_that_comes_eight_times_at_once_is_computed_once() -> None:
    bench = Bench()
    prefix = tokens(1_000)
    keys = [bench.add([*prefix, *tokens(20, seed=seed)]) for seed in range(2, 10)]
    bench.run()
    bench.check(*keys)
    assert bench.device.prefilled_tokens <= 1_000 + 8 * 20
    assert sorted(bench.cached_tokens(key) for key in keys) == [0] + [1_000] * 7
    assert bench.device.copied_tokens, "the last 40 tokens are in no block, but in the row of the first"


def test_who_waits_for_a_prefix_lets_others_go_first() -> None:
    bench = Bench()
    first, second = (bench.add([*tokens(1_000), number]) for number in (1, 2))
    bench.step()
    other = bench.add(tokens(10, seed=7))
    bench.step()
    assert (bench[first], bench[second], bench[other]) == (0, 0, 1)
    bench.run()
    bench.check(first, second, other)


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_when_the_one_that_computes_a_prefix_is_gone_the_next_goes_on_from_there(steps: int) -> None:
    bench = Bench()
    first, second, third = (bench.add([*tokens(1_000), number]) for number in (1, 2, 3))
    bench.step(steps)
    bench.scheduler.abort([first])
    bench.run()
    bench.check(second, third)
    assert bench.cached_tokens(second) == steps * BUDGET // BLOCK_TOKENS * BLOCK_TOKENS
    assert bench.cached_tokens(third) == 1_000
    assert bench.device.prefilled_tokens <= 1_001 + 2 * BLOCK_TOKENS


def test_an_abort_while_the_plan_runs_leaves_nothing_half_done() -> None:
    bench = Bench()
    first, second = (bench.add([*tokens(1_000), number]) for number in (1, 2))
    bench.step(2)
    plan = bench.scheduler.plan()
    bench.scheduler.abort([first])
    bench.scheduler.update(bench.device.run(plan))
    bench.scheduler.check_invariants()
    bench.run()
    bench.check(second)
    assert bench.cached_tokens(second) == 3 * BUDGET, "what the plan computed that ran counts too"
    third = bench.add([*tokens(1_000), 3])
    plan = bench.scheduler.plan()
    assert plan.restores
    bench.scheduler.abort([third])
    bench.scheduler.update(bench.device.run(plan))
    bench.run()
    assert bench.serve([*tokens(1_000), 4]) == 960


def test_a_higher_priority_does_not_wait_for_a_lower_one() -> None:
    bench = Bench()
    low = bench.add([*tokens(1_000), 1], priority=1)
    bench.step()
    high = bench.add([*tokens(1_000), 2], priority=0)
    while not bench[high]:
        bench.step()
    assert not bench[low]
    bench.run()
    bench.check(low, high)


def test_a_preempted_sequence_restores_what_it_saved() -> None:
    bench = Bench(kv_capacity_tokens=2_816, growth=0)
    keys = [bench.add(tokens(460, seed=seed), max_tokens=100) for seed in range(3)]
    bench.run()
    bench.check(*keys)
    load = bench.scheduler.load()
    assert load.preemptions_total > 0
    assert bench.device.restored_tokens > 0
    assert load.prefix_hits_tokens_total == 0, "one's own blocks are no hits"


def test_rows_win_over_blocks_and_blocks_come_back_when_rows_are_gone() -> None:
    bench = Bench(kv_capacity_tokens=4_096)
    bench.serve(tokens(1_900))
    assert len(bench.device.blocks) == 1_900 // BLOCK_TOKENS
    long = bench.add(tokens(4_000, seed=2), max_tokens=40)
    bench.step()
    assert len(bench.device.blocks) == 0, "its row takes all"
    bench.run()
    bench.check(long)
    assert bench.serve(tokens(500, seed=3)) == 0
    assert bench.serve(tokens(500, seed=3)) == 448


def test_side_requests_do_not_push_out_a_shared_prefix() -> None:
    bench = Bench(kv_capacity_tokens=8_192)
    shared = tokens(1_000)
    bench.serve([*shared, 1])
    bench.serve([*shared, 2])
    for seed in range(100, 200):
        bench.serve(tokens(200, seed=seed))
    assert bench.serve([*shared, 3]) == 960


def test_nothing_waits_for_a_block_that_will_not_be_stored() -> None:
    bench = Bench(kv_capacity_tokens=1_024)
    keys = [bench.add([*tokens(200), number], max_tokens=100) for number in range(6)]
    bench.run()
    bench.check(*keys)


def test_who_would_need_the_memory_of_blocks_that_are_being_restored_joins_a_step_later() -> None:
    bench = Bench(kv_capacity_tokens=2_048, growth=0)
    bench.serve(tokens(800))
    long = bench.add([*tokens(800), *tokens(150, seed=2)])
    short = bench.add(tokens(10, seed=3), priority=1)
    bench.step()
    assert bench.device.restored_tokens == 768
    assert len(bench.device.rows) == 1
    bench.step()
    assert len(bench.device.rows) == 2
    bench.run()
    bench.check(long, short)
