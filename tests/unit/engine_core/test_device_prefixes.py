"""Stored prefixes on MLX: a request gets the same tokens warm and cold, within the memory that there is."""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tiny_models import VOCAB, greedy_alone, tiny_model, write_model_folder

from engine_core.config import EngineCoreConfig
from engine_core.device import (
    Admission,
    BlockId,
    BlockLoad,
    BlockRestore,
    BlockSave,
    CheckpointSave,
    DecodeRow,
    PrefillChunk,
    Slot,
    StepPlan,
    StepResult,
)
from engine_core.mlx_device import MlxDevice, open_mlx_device
from engine_core.mlx_lm_adapter import trace_model
from engine_core.model_runner import PlanError
from engine_core.output_head import selection_of
from engine_core.pool_lengths import pool_lengths
from engine_core.row_runner import RowRunner
from engine_core.runner_choice import levels
from engine_core.sampler import Sampler
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.slot_runner import Level, SlotRunner
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest, RequestKey
from protocol.prefix_hash import BLOCK_TOKENS, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
ROWS, STEP_TOKENS = 4, 48


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(length)]


def run(device: MlxDevice, plan: StepPlan) -> StepResult:
    device.submit(plan)
    return device.collect()


class Engine:
    """A tiny model's device under a scheduler."""

    def __init__(
        self, model: Any, capacity_tokens: int = 8_192, stores: bool = True, level: Level | None = None
    ) -> None:
        trace = trace_model(model)
        assert trace.layouts is not None
        lengths = pool_lengths(capacity_tokens)
        level = levels(trace.layouts)[0] if level is None else level
        self.runner = SlotRunner(model, trace.layouts, lengths, ROWS, level, selection_of(model), STEP_TOKENS)
        self.device = MlxDevice(self.runner, Sampler(VOCAB, (), may_wait=True), VOCAB, capacity_tokens, lengths, 64)
        self.capacity_tokens = capacity_tokens
        self.stores = stores
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=ROWS,
                max_num_batched_tokens=STEP_TOKENS,
                max_model_len=capacity_tokens,
                kv_capacity_tokens=capacity_tokens,
                pool_lengths=lengths,
                growth_tokens=0,
                checkpoint_tokens=self.device.checkpoint_tokens,
            ),
            (),
        )
        self.tokens: dict[RequestId, list[int]] = {}
        self.cached: dict[RequestId, int] = {}
        self.copied_tokens = 0

    def add(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> RequestId:
        name = RequestId(f"r{len(self.tokens)}")
        self.tokens[name] = []
        request = EngineCoreRequest(name, ClientIndex(0), 0, "m", len(prompt), sampling, 0.0)
        chain = prefix_chain(prefix_root("m", "", ""), prompt) if self.stores else ()
        self.scheduler.add(request, array("I", prompt), chain)
        return name

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        self.copied_tokens += sum(copy.tokens for copy in plan.copies)
        for outputs in self.scheduler.update(run(self.device, plan)).values():
            for output in outputs:
                self.tokens[output.request_id] += output.token_ids
                self.cached[output.request_id] = self.cached.get(output.request_id, 0) + output.cached_tokens
        self.device.check_invariants()
        self.scheduler.check_invariants()
        blocks_tokens = len(self.runner._prefixes.blocks) * BLOCK_TOKENS
        slots_tokens = sum(pool.slots * pool.length for pool in self.runner._pools.pools)
        checkpoints_tokens = len(self.runner._prefixes.checkpoints) * self.device.checkpoint_tokens
        assert slots_tokens + blocks_tokens + checkpoints_tokens <= self.capacity_tokens

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def serve(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt's were stored."""
        name = self.add(prompt, sampling)
        self.run()
        return self.tokens[name], self.cached[name]


BORDERS = (63, 64, 65, 66, 127, 128, 129, 130)


@pytest.mark.parametrize(
    ("model_type", "lengths"), [("llama", range(63, 131)), ("qwen3", BORDERS), ("gemma3_text", BORDERS)]
)
def test_warm_and_cold_give_the_same_tokens_around_every_block_border(model_type: str, lengths: Sequence[int]) -> None:
    model = tiny_model(model_type)
    engine = Engine(model)
    for length in lengths:
        cold, none_cached = engine.serve(prompt_of(length, seed=length))
        warm, cached = engine.serve(prompt_of(length, seed=length))
        in_blocks = (length + GREEDY.max_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert (none_cached, cached) == (0, min(in_blocks, length - 1))
        assert warm == cold == greedy_alone(model, prompt_of(length, seed=length), GREEDY.max_tokens)


@pytest.mark.parametrize("level", [Level.POOLED_DECODE, Level.PER_POOL])
def test_a_model_with_a_state_gives_the_same_tokens_from_a_checkpoint(level: Level) -> None:
    model = tiny_model("mamba")
    engine = Engine(model, level=level)
    for length in BORDERS:
        prompt = prompt_of(length, seed=length)
        expected = greedy_alone(model, prompt, GREEDY.max_tokens)
        assert engine.serve(prompt) == (expected, 0)
        assert engine.serve(prompt) == (expected, (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def test_turns_of_several_conversations_go_on_from_the_states_behind_their_outputs() -> None:
    model, turn = tiny_model("mamba"), SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
    engine, prompts = Engine(model), [prompt_of(20 + seed, seed=seed) for seed in range(3)]
    for cached in (0, 64, 192):
        names = [engine.add(prompt, turn) for prompt in prompts]
        engine.run()
        assert [engine.tokens[name] for name in names] == [greedy_alone(model, p, 80) for p in prompts]
        assert [engine.cached[name] for name in names] == [cached] * 3
        prompts = [[*p, *engine.tokens[name], *prompt_of(25)] for p, name in zip(prompts, names, strict=True)]


def test_memory_of_checkpoints_is_bounded_and_given_back() -> None:
    engine = Engine(tiny_model("mamba"), capacity_tokens=2_048)
    engine.serve(prompt_of(10))
    before = _in_use()
    for seed in range(20):
        engine.serve(prompt_of(150, seed=seed))
    checkpoints = engine.runner._prefixes.checkpoints
    assert 3 <= len(checkpoints) < 20
    assert _in_use() - before == pytest.approx(checkpoints.nbytes, rel=0.1)
    big = engine.add(prompt_of(2_000, seed=99))
    engine.step()
    assert len(checkpoints) == 0
    engine.scheduler.abort([RequestKey(big)])
    engine.run()


def test_to_take_a_checkpoint_while_rows_decode_the_host_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = Engine(tiny_model("mamba")), prompt_of(70)
    device, pools = engine.device, (2, 0, 0, 0, 0, 0)
    first, second = (Admission(row, Slot(0, row), prompt, (), GREEDY) for row in range(2))
    run(device, StepPlan(pool_slots=pools, admissions=[first], prefills=[PrefillChunk(0, 0, prompt[:64])]))
    save, decode = CheckpointSave(BlockId(0), 0, 64), DecodeRow(0, 64, prompt[64], 0)
    waits: list[int] = []
    """Arrays of each evaluation."""
    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", lambda *arrays: waits.append(len(tree_flatten(list(arrays)))))
        device.submit(StepPlan(pool_slots=pools, checkpoint_saves=[save], decodes=[decode]))
    assert sum(waits) == 0
    device.collect()
    blocks = [BlockSave(BlockId(0), 0, 0)]
    restore = BlockRestore(1, [BlockId(0)], 64)
    second_decode = DecodeRow(1, 64, prompt[64], 0)
    plan = StepPlan(pool_slots=pools, saves=blocks, admissions=[second], restores=[restore], decodes=[second_decode])
    assert run(device, plan).token_ids == greedy_alone(tiny_model("mamba"), prompt[:65], 1)


def test_a_checkpoint_is_taken_only_where_the_row_is() -> None:
    device, pools = Engine(tiny_model("mamba")).device, (1, 0, 0, 0, 0, 0)
    first = Admission(0, Slot(0, 0), prompt_of(100), (), GREEDY)
    run(device, StepPlan(pool_slots=pools, admissions=[first], prefills=[PrefillChunk(0, 0, prompt_of(65))]))
    for plan in (
        StepPlan(pool_slots=pools, checkpoint_saves=[CheckpointSave(BlockId(0), 0, 64)]),
        StepPlan(pool_slots=pools, checkpoint_drops=[BlockId(0)]),
    ):
        with pytest.raises(PlanError):
            run(device, plan)


def test_seeded_requests_and_penalties_are_the_same_warm_and_cold() -> None:
    engine = Engine(tiny_model("llama"))
    sampling = SamplingParams(max_tokens=20, seed=3, temperature=1.0, repetition_penalty=1.3, ignore_eos=True)
    cold, warm = (engine.serve(prompt_of(200), sampling) for _ in range(2))
    assert (cold[1], warm[1]) == (0, 192)
    assert cold[0] == warm[0]


@pytest.mark.parametrize("capacity_tokens", [512, 1_024, 2_048])
def test_mixed_requests_stay_within_the_memory_and_get_what_they_get_alone(capacity_tokens: int) -> None:
    model, draw = tiny_model("llama"), random.Random(capacity_tokens)
    engine = Engine(model, capacity_tokens)
    shared = [prompt_of(length, seed=length) for length in (70, 130, 200)]
    expected = {}
    for number in range(25):
        prompt = [*draw.choice(shared), *prompt_of(draw.choice([1, 30, 100]), seed=number % 7)]
        sampling = SamplingParams(max_tokens=draw.choice([2, 70]), temperature=0.0, ignore_eos=True)
        expected[engine.add(prompt, sampling)] = greedy_alone(model, prompt, sampling.max_tokens)
        for _ in range(draw.randrange(8)):
            engine.step()
    engine.run()
    assert engine.tokens == expected
    if capacity_tokens > 512:  # two rows take that much
        assert engine.scheduler.load().prefix_hits_tokens_total > 0


def test_memory_of_blocks_is_counted_bounded_and_given_back() -> None:
    engine = Engine(tiny_model("llama"), capacity_tokens=2_048)
    engine.serve(prompt_of(10))
    before = _in_use()
    for seed in range(20):
        engine.serve(prompt_of(150, seed=seed))
    blocks_bytes = engine.runner._prefixes.blocks.nbytes
    assert blocks_bytes > 0
    assert _in_use() - before == pytest.approx(blocks_bytes, rel=0.1)
    big = engine.add(prompt_of(2_000, seed=99))
    engine.step()
    assert len(engine.runner._prefixes.blocks) == 0
    engine.scheduler.abort([RequestKey(big)])
    engine.run()
    assert _in_use() - before < blocks_bytes / 10


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_what_is_copied_from_a_running_row_is_as_good_as_computed(model_type: str) -> None:
    model, engine = tiny_model(model_type), Engine(tiny_model(model_type))
    shared = prompt_of(112, seed=5)
    prompts = [[*shared, *prompt_of(length, seed=length)] for length in (1, 7, 30, 64)]
    names = [engine.add(prompt) for prompt in prompts]
    engine.run()
    assert [engine.tokens[name] for name in names] == [greedy_alone(model, p, GREEDY.max_tokens) for p in prompts]
    assert engine.copied_tokens == 3 * 112
    assert sorted(engine.cached.values()) == [0, 112, 112, 112]


@pytest.mark.parametrize("shared", [8, 40, 63, 64, 65, 100, 127])
def test_a_prompt_that_turns_elsewhere_inside_of_a_block_gets_what_it_gets_alone(shared: int) -> None:
    model, engine = tiny_model("llama"), Engine(tiny_model("llama"))
    engine.serve(prompt_of(140))
    prompt = [*prompt_of(140)[:shared], *prompt_of(50, seed=9)]
    assert prompt_of(140)[shared] != prompt[shared]
    assert engine.serve(prompt) == (greedy_alone(model, prompt, GREEDY.max_tokens), shared)


def test_nothing_is_kept_without_prefix_caching() -> None:
    engine = Engine(tiny_model("llama"), stores=False)
    engine.serve(prompt_of(10))
    before = _in_use()
    engine.serve(prompt_of(500))
    assert _in_use() <= before


def test_to_save_to_restore_and_to_load_copies_no_buffer() -> None:
    engine, prompt = Engine(tiny_model("llama")), prompt_of(129)
    device, pools = engine.device, (0, 0, 0, ROWS, 0, 0)
    first = Admission(0, Slot(3, 0), prompt, (), GREEDY)
    run(device, StepPlan(pool_slots=pools, admissions=[first], prefills=[PrefillChunk(0, 0, prompt[:128])]))
    one_buffer = engine.runner.written_arrays()[0].nbytes
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    saves = [BlockSave(BlockId(number), 0, 64 * number) for number in range(2)]
    run(device, StepPlan(pool_slots=pools, saves=saves))
    data = [memoryview(bytes(part)) for part in device.read_block(BlockId(0))]
    second = Admission(1, Slot(3, 1), prompt, (), GREEDY)
    plan = StepPlan(
        pool_slots=pools,
        drops=[BlockId(0)],
        loads=[BlockLoad(BlockId(2), data)],
        admissions=[second],
        restores=[BlockRestore(1, [BlockId(2), BlockId(1)], 100)],
        decodes=[DecodeRow(0, 128, prompt[128], 0)],
    )
    run(device, plan)
    assert mx.get_peak_memory() - active < one_buffer / 2
    restored = run(device, StepPlan(pool_slots=pools, prefills=[PrefillChunk(1, 100, prompt[100:128])]))
    assert restored.token_ids == []
    device.check_invariants()
    planes = engine.runner._pools.pools[3].planes()
    assert all(mx.allclose(plane[0, :, :128], plane[1, :, :128], atol=1e-5) for plane in planes)


def test_a_model_with_a_state_stores_checkpoints_and_nothing_outside_of_the_device(tmp_path: Path) -> None:
    for model_type, has_states in (("mamba", True), ("llama", False)):
        folder = write_model_folder(tmp_path / model_type, model_type)
        config = EngineCoreConfig(engines_address="ipc:///unused", model=str(folder))
        device = open_mlx_device(config, lambda _share, _name: None).device
        assert device.prefix_block_tokens == BLOCK_TOKENS
        assert (device.checkpoint_tokens > 0, device.block_parts == ()) == (has_states, has_states)
    assert not RowRunner(tiny_model("llama")).stores_blocks


def test_plans_that_do_not_fit_what_is_stored_are_refused() -> None:
    device, pools = Engine(tiny_model("llama")).device, (2, 0, 0, 0, 0, 0)
    first = Admission(0, Slot(0, 0), prompt_of(100), (), GREEDY)
    run(device, StepPlan(pool_slots=pools, admissions=[first], prefills=[PrefillChunk(0, 0, prompt_of(48))]))
    run(device, StepPlan(pool_slots=pools, prefills=[PrefillChunk(0, 48, prompt_of(99)[48:])]))
    joining = Admission(1, Slot(0, 1), prompt_of(100), (), GREEDY)
    for plan in (
        StepPlan(pool_slots=pools, saves=[BlockSave(BlockId(0), 0, 64)]),  # not complete
        StepPlan(pool_slots=pools, saves=[BlockSave(BlockId(0), 3, 0)]),  # no such row
        StepPlan(pool_slots=pools, drops=[BlockId(0)]),
        StepPlan(pool_slots=pools, loads=[BlockLoad(BlockId(0), [memoryview(b"x")])]),
        StepPlan(pool_slots=pools, restores=[BlockRestore(0, [BlockId(0)], 64)]),  # not empty
        StepPlan(pool_slots=pools, admissions=[joining], restores=[BlockRestore(1, [BlockId(0)], 64)]),  # not there
    ):
        with pytest.raises(PlanError):
            run(device, plan)
    with pytest.raises(PlanError):
        device.read_block(BlockId(0))


def _in_use() -> int:
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()
