"""Models with recurrent states: prefixes are found where a checkpoint was left, and only there."""

from array import array
from collections.abc import Sequence

import pytest
from test_scheduler_prefixes import tokens
from token_device import TokenDevice, output_alone

from engine_core.pool_lengths import pool_lengths
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, RequestKey
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

BUDGET = 300


class Bench:
    """A scheduler, and a device whose rows have states."""

    def __init__(
        self, kv_capacity_tokens: int = 65_536, checkpoint_tokens: int = 100, rows: int = 8, growth_tokens: int = 128
    ) -> None:
        limits = SchedulerLimits(
            max_num_seqs=rows,
            max_num_batched_tokens=BUDGET,
            max_model_len=min(8_193, kv_capacity_tokens + 1),
            kv_capacity_tokens=kv_capacity_tokens,
            pool_lengths=pool_lengths(min(8_193, kv_capacity_tokens + 1)),
            checkpoint_tokens=checkpoint_tokens,
            growth_tokens=growth_tokens,
        )
        self.scheduler = Scheduler(limits, [])
        self.device = TokenDevice(kv_capacity_tokens, rows, BUDGET, limits.pool_lengths, checkpoint_tokens)
        self.steps = 0
        self.prompts: dict[RequestKey, list[int]] = {}
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}

    def add(self, prompt: Sequence[int], max_tokens: int = 3) -> RequestKey:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        name = RequestId(f"r{len(self.prompts)}")
        request = EngineCoreRequest(name, ClientIndex(0), 0, "m", len(prompt), sampling, 0.0)
        self.prompts[request.key] = list(prompt)
        chain = prefix_chain(prefix_root("m", "", ""), prompt)
        assert self.scheduler.add(request, array("I", prompt), chain) == {}
        return request.key

    def step(self) -> None:
        plan = self.scheduler.plan()
        self.steps += 1
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

    def cached_tokens(self, key: RequestKey) -> int:
        """Of a request that has ended, with the tokens that it would get alone."""
        found = [token for output in self.outputs[key] for token in output.token_ids]
        assert found == output_alone(self.prompts[key], len(found))
        return self.outputs[key][0].cached_tokens

    def serve(self, prompt: Sequence[int], max_tokens: int = 3) -> int:
        key = self.add(prompt, max_tokens)
        self.run()
        return self.cached_tokens(key)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 66, 127, 128, 129, 130, 200])
def test_a_prompt_that_comes_again_starts_at_its_last_border(length: int) -> None:
    bench = Bench()
    assert bench.serve(tokens(length)) == 0
    assert bench.serve(tokens(length)) == (length - 1) // 64 * 64
    assert bench.scheduler.load().prompt_tokens_total == 2 * length - bench.device.restored_tokens


def test_the_next_turn_starts_at_the_last_border_of_the_output() -> None:
    bench, prompt = Bench(), tokens(50)
    bench.serve(prompt, max_tokens=200)
    conversation = [*prompt, *output_alone(prompt, 200), *tokens(20, seed=2)]
    assert bench.serve(conversation) == 192, "249 tokens of the first turn were computed"
    places = sorted(len(tokens_before) for tokens_before in bench.device.checkpoints.values())
    assert places == [192, 256], "those of the output before the last are given up, the second turn's prompt has one"


def test_a_prompt_that_shares_a_part_leaves_a_checkpoint_there_for_the_next() -> None:
    bench, system = Bench(), tokens(500)
    found = [bench.serve([*system, *tokens(300, seed=seed)]) for seed in range(2, 5)]
    assert found == [0, 0, 448]


def test_regular_checkpoints_serve_a_prompt_that_shares_most_of_a_long_one() -> None:
    bench, long = Bench(), tokens(4_000)
    bench.serve(long)
    assert bench.serve([*long[:3_000], *tokens(20, seed=2)]) == 2_048


def test_a_prefix_that_comes_eight_times_at_once_is_computed_once() -> None:
    bench, shared = Bench(), tokens(1_000)
    keys = [bench.add([*shared, *tokens(200, seed=seed)]) for seed in range(2, 10)]
    bench.run()
    assert sorted(bench.cached_tokens(key) for key in keys) == [0] + [960] * 7
    assert bench.device.prefilled_tokens + 8 <= 960 + 8 * 240


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_when_the_one_that_was_to_leave_a_checkpoint_is_gone_the_others_do_not_wait_for_it(steps: int) -> None:
    bench, shared = Bench(), tokens(1_000)
    first, second, third = (bench.add([*shared, *tokens(200, seed=seed)]) for seed in range(2, 5))
    for _ in range(steps):
        bench.step()
    bench.scheduler.abort([first])
    bench.run()
    assert (bench.cached_tokens(second), bench.cached_tokens(third)) == (0, 960)


def test_a_preempted_sequence_leaves_nothing_behind_that_is_wrong() -> None:
    bench = Bench(kv_capacity_tokens=2_816, checkpoint_tokens=64, rows=3, growth_tokens=0)
    keys = [bench.add(tokens(460, seed=seed), max_tokens=100) for seed in range(3)]
    bench.run()
    assert [bench.cached_tokens(key) for key in keys] == [0, 0, 0]
    assert bench.scheduler.load().preemptions_total > 0


def test_rows_win_over_checkpoints_and_what_leads_to_none_is_not_kept() -> None:
    bench = Bench(kv_capacity_tokens=4_096, checkpoint_tokens=200)
    bench.serve(tokens(1_900))
    assert (len(bench.device.blocks), len(bench.device.checkpoints)) == (16, 1), "at 1,024; no room for one at 1,856"
    long = bench.add(tokens(4_000, seed=2), max_tokens=40)
    bench.step()
    assert (len(bench.device.blocks), len(bench.device.checkpoints)) == (0, 0)
    bench.run()
    bench.cached_tokens(long)


def test_a_checkpoint_that_is_too_large_for_the_cache_is_not_left() -> None:
    bench = Bench(kv_capacity_tokens=4_096, checkpoint_tokens=4_000)
    assert [bench.serve(tokens(300)), bench.serve(tokens(300))] == [0, 0]
    assert (bench.device.blocks, bench.device.checkpoints) == ({}, {})


@pytest.mark.parametrize("checkpoint_tokens", [0, 64])
def test_saves_of_many_running_rows_make_few_plans_wait(checkpoint_tokens: int) -> None:
    bench = Bench(checkpoint_tokens=checkpoint_tokens, rows=64)
    keys = [bench.add(tokens(4 + number, seed=number), max_tokens=300) for number in range(64)]
    while not all(len(bench.outputs.get(key, [])) > 1 for key in keys):
        bench.step()
    steps, waits = bench.steps, bench.device.waits
    for _ in range(200):
        bench.step()
    assert bench.steps - steps == 200
    assert 0 < bench.device.waits - waits <= 200 // 16 + 1, "a block is complete in nearly every step"
    bench.run()
    assert all(bench.cached_tokens(key) == 0 for key in keys)
    prompt = [*bench.prompts[keys[0]], *output_alone(bench.prompts[keys[0]], 300)]
    assert bench.serve(prompt) == 256
