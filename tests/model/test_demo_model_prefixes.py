"""Stored prefixes with the demo model: the same ids warm and cold, and what is shared is computed once."""

import random
import time
from array import array
from collections.abc import Iterator, Sequence

import pytest

from deploy.cache import cache_directory
from deploy.demo_model import Weights, ensure_demo_model
from engine_core.config import EngineCoreConfig
from engine_core.device import OpenedModel
from engine_core.mlx_device import open_mlx_device
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest
from protocol.prefix_hash import BLOCK_TOKENS, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
ROWS = 12


@pytest.fixture(scope="module")
def engine() -> Iterator["Engine"]:
    folder = ensure_demo_model(cache_directory(), Weights.FLOAT32)
    config = EngineCoreConfig(
        engines_address="ipc:///unused", model=str(folder), max_num_seqs=ROWS, max_model_len=2_048
    )
    model = open_mlx_device(config, lambda _share, _name: None)
    yield Engine(model)
    model.device.close()


class Engine:
    """Scheduler and device."""

    def __init__(self, model: OpenedModel) -> None:
        self._device = model.device
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=ROWS,
                max_num_batched_tokens=256,
                max_model_len=2_048,
                kv_capacity_tokens=32_768,
                pool_lengths=tuple(model.device.pool_lengths),
            ),
            (),
        )
        self.first_outputs: dict[RequestId, EngineCoreOutput] = {}
        self.tokens: dict[RequestId, list[int]] = {}

    def add(self, prompt: Sequence[int], salt: str = "") -> RequestId:
        name = RequestId(f"r{len(self.tokens)}")
        self.tokens[name] = []
        request = EngineCoreRequest(name, ClientIndex(0), 0, "demo", len(prompt), GREEDY, 0.0, cache_salt=salt)
        self.scheduler.add(request, array("I", prompt), prefix_chain(prefix_root("demo", "", salt), prompt))
        return name

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        self._device.submit(plan)
        for outputs in self.scheduler.update(self._device.collect()).values():
            for output in outputs:
                self.first_outputs.setdefault(output.request_id, output)
                self.tokens[output.request_id] += output.token_ids

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def first_token_s(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Time to its first token, alone, and how many tokens of it were stored."""
        name, began = self.add(prompt), time.perf_counter()
        while not self.tokens[name]:
            self.step()
        elapsed_s = time.perf_counter() - began
        self.run()
        return elapsed_s, self.first_outputs[name].cached_tokens


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(100, 40_000) for _ in range(length)]


def test_warm_and_cold_give_the_same_ids_at_every_length_around_block_borders(engine: Engine) -> None:
    lengths = range(63, 131)
    cold = [engine.add(prompt_of(length), salt=f"{length}") for length in lengths]
    engine.run()
    warm = [engine.add(prompt_of(length), salt=f"{length}") for length in lengths]
    engine.run()
    assert not any(engine.first_outputs[name].cached_tokens for name in cold)
    cached = [engine.first_outputs[name].cached_tokens for name in warm]
    in_blocks = [(length + GREEDY.max_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS for length in lengths]
    assert cached == [min(blocks, length - 1) for blocks, length in zip(in_blocks, lengths, strict=True)]
    assert [engine.tokens[name] for name in warm] == [engine.tokens[name] for name in cold]


def test_a_prefix_that_comes_eight_times_at_once_is_computed_once_and_then_found(engine: Engine) -> None:
    prefix = prompt_of(1_000, seed=2)
    tails = [prompt_of(20, seed=seed) for seed in range(10, 18)]
    for tail in tails:
        engine.add([*prefix, *tail])
    before = engine.scheduler.load().prompt_tokens_total
    engine.run()
    computed = engine.scheduler.load().prompt_tokens_total - before
    print(f"{computed} prompt tokens computed")
    assert computed <= 1.02 * len(prefix) + 8 * len(tails[0])


def test_chat_prompts_that_share_a_template_compute_it_once(engine: Engine) -> None:
    template = prompt_of(24, seed=20)
    names = [engine.add([*template, *prompt_of(16, seed=seed)]) for seed in range(100, 132)]
    before = engine.scheduler.load().prompt_tokens_total
    engine.run()
    assert engine.scheduler.load().prompt_tokens_total - before == 24 + 32 * 16
    alone = [engine.add([*template, *prompt_of(16, seed=seed)], salt=f"{seed}") for seed in range(100, 132)]
    engine.run()
    assert [engine.tokens[name] for name in names] == [engine.tokens[name] for name in alone]


def test_a_warm_prefix_of_1000_tokens_takes_an_eighth_of_the_time(engine: Engine) -> None:
    cold_s, none_cached = engine.first_token_s(prompt_of(1_000, seed=3))
    warm_s, cached = engine.first_token_s(prompt_of(1_000, seed=3))
    assert (none_cached, cached) == (0, 960)
    print(f"cold {cold_s:.2f} s, warm {warm_s:.2f} s: 1/{cold_s / warm_s:.1f}")
    assert warm_s <= cold_s / 8
