"""Stored prefixes on MLX: a request gets the same tokens warm and cold, within the memory that there is."""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import VOCAB, greedy_alone, tiny_model, write_model_folder

from engine_core.config import EngineCoreConfig
from engine_core.device import Admission, BlockId, BlockRestore, BlockSave, PrefillChunk, StepPlan
from engine_core.mlx_device import MlxDevice, open_mlx_device
from engine_core.mlx_lm_adapter import trace_model
from engine_core.model_runner import PlanError
from engine_core.row_runner import RowRunner
from engine_core.sampler import Sampler
from engine_core.scheduler import Scheduler, SchedulerLimits
from engine_core.slot_runner import SlotRunner
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest, RequestKey
from protocol.prefix_hash import BLOCK_TOKENS, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
ROWS = 4


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(length)]


class Engine:
    """A tiny model's device under a scheduler."""

    def __init__(self, model: Any, capacity_tokens: int = 8_192, stores: bool = True) -> None:
        trace = trace_model(model)
        assert trace.layouts is not None
        self.runner = SlotRunner(model, trace.layouts, capacity_tokens, ROWS)
        self.device = MlxDevice(self.runner, Sampler(VOCAB, ()), VOCAB, capacity_tokens)
        self.capacity_tokens = capacity_tokens
        self.stores = stores
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=ROWS,
                max_num_batched_tokens=48,
                max_model_len=capacity_tokens,
                kv_capacity_tokens=capacity_tokens,
                growth_room_tokens=0,
            ),
            (),
        )
        self.tokens: dict[RequestId, list[int]] = {}
        self.cached: dict[RequestId, int] = {}

    def add(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> RequestId:
        name = RequestId(f"r{len(self.tokens)}")
        self.tokens[name] = []
        request = EngineCoreRequest(name, ClientIndex(0), 0, "m", len(prompt), sampling, 0.0)
        chain = prefix_chain(prefix_root("m", "", ""), prompt) if self.stores else ()
        self.scheduler.add(request, array("I", prompt), chain)
        return name

    def step(self) -> None:
        plan = self.scheduler.plan()
        for outputs in self.scheduler.update(self.device.run(plan)).values():
            for output in outputs:
                self.tokens[output.request_id] += output.token_ids
                self.cached[output.request_id] = self.cached.get(output.request_id, 0) + output.cached_tokens
        self.device.check_invariants()
        self.scheduler.check_invariants()
        blocks_tokens = len(self.runner._blocks) * BLOCK_TOKENS
        assert self.runner._buffers.shape.tokens + blocks_tokens <= self.capacity_tokens

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
        assert (none_cached, cached) == (0, (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        assert warm == cold == greedy_alone(model, prompt_of(length, seed=length), GREEDY.max_tokens)


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
    blocks_bytes = engine.runner._blocks.nbytes
    assert blocks_bytes > 0
    assert _in_use() - before == pytest.approx(blocks_bytes, rel=0.1)
    big = engine.add(prompt_of(2_000, seed=99))
    engine.step()
    assert len(engine.runner._blocks) == 0
    engine.scheduler.abort([RequestKey(big)])
    engine.run()
    assert _in_use() - before < blocks_bytes / 10


def test_rows_that_nobody_asked_for_make_way_for_blocks() -> None:
    model, tokens = tiny_model("llama"), prompt_of(256)
    runner = Engine(model, capacity_tokens=768).runner
    runner.admit(0)
    runner.admit(1)
    runner.reserve(2, 200)
    runner.release(1)
    runner.reserve(1, 200)
    runner.prefill(PrefillChunk(0, 0, tokens[:200]))
    assert runner._buffers.shape.tokens == 512, "a row for the next one that joins"
    for number in range(3):
        runner.save_blocks([BlockSave(BlockId(number), 0, 64 * number)])
    assert runner._buffers.shape.tokens == 512
    runner.prefill(PrefillChunk(0, 200, tokens[200:]))
    runner.save_blocks([BlockSave(BlockId(3), 0, 192)])
    assert runner._buffers.shape.tokens + 4 * BLOCK_TOKENS <= 768
    runner.save_blocks([BlockSave(BlockId(4 + number), 0, 64 * number) for number in range(4)])
    assert runner._buffers.shape.tokens == 256
    runner.drop_blocks([BlockId(number) for number in range(4)])
    runner.admit(1)
    runner.reserve(2, 256)
    runner.restore_blocks(BlockRestore(1, [BlockId(4 + number) for number in range(4)]))
    planes = runner.written_arrays()
    assert all(mx.array_equal(plane[0, :, :256], plane[1, :, :256]) for plane in planes)
    assert runner._buffers.shape.tokens + 4 * BLOCK_TOKENS <= 768


def test_nothing_is_kept_without_prefix_caching() -> None:
    engine = Engine(tiny_model("llama"), stores=False)
    engine.serve(prompt_of(10))
    before = _in_use()
    engine.serve(prompt_of(500))
    assert _in_use() <= before


def test_to_save_and_to_restore_copies_no_buffer() -> None:
    runner = Engine(tiny_model("llama"), capacity_tokens=8_192).runner
    for row in range(ROWS):
        runner.admit(row)
    runner.reserve(ROWS, 1_500)
    runner.prefill(PrefillChunk(0, 0, prompt_of(128)))
    one_buffer = runner.written_arrays()[0].nbytes
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    runner.save_blocks([BlockSave(BlockId(number), 0, 64 * number) for number in range(2)])
    runner.restore_blocks(BlockRestore(3, [BlockId(0), BlockId(1)]))
    runner.prefill(PrefillChunk(3, 128, [5]))
    runner.check_invariants()
    assert mx.get_peak_memory() - active < one_buffer / 2


def test_a_model_with_a_state_stores_no_blocks(tmp_path: Path) -> None:
    for model_type, tokens in (("mamba", 0), ("llama", BLOCK_TOKENS)):
        folder = write_model_folder(tmp_path / model_type, model_type)
        config = EngineCoreConfig(engines_address="ipc:///unused", model=str(folder))
        assert open_mlx_device(config, lambda _share, _name: None).device.prefix_block_tokens == tokens
    assert not RowRunner(tiny_model("llama")).stores_blocks


def test_plans_that_do_not_fit_what_is_stored_are_refused() -> None:
    engine = Engine(tiny_model("llama"))
    run = engine.device.run
    run(
        StepPlan(
            admissions=[Admission(0, prompt_of(100), (), GREEDY)],
            kv_rows=1,
            kv_length=256,
            prefills=[PrefillChunk(0, 0, prompt_of(99))],
        )
    )
    joining = Admission(1, prompt_of(100), (), GREEDY)
    for plan in (
        StepPlan(saves=[BlockSave(BlockId(0), 0, 64)]),  # not complete
        StepPlan(saves=[BlockSave(BlockId(0), 3, 0)]),  # no such row
        StepPlan(drops=[BlockId(0)]),
        StepPlan(kv_rows=1, kv_length=256, restores=[BlockRestore(0, [BlockId(0)])]),  # not empty
        StepPlan(admissions=[joining], kv_rows=2, kv_length=256, restores=[BlockRestore(1, [BlockId(0)])]),
    ):
        with pytest.raises(PlanError):
            run(plan)


def _in_use() -> int:
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()
