import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from random_requests import RandomDriver, Request
from tiny_models import CONFIGS, VOCAB, greedy_alone, tiny_model, write_model_folder

from engine_core import mlx_device
from engine_core.config import EngineCoreConfig
from engine_core.device import Admission, DecodeRow, ModelRefused, OpenedModel, PrefillChunk, Slot, StepPlan
from engine_core.mlx_device import MlxDevice, open_mlx_device
from engine_core.mlx_lm_adapter import UNFIT_FOR_SLOTS
from engine_core.model_runner import PlanError
from protocol.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


def opened(folder: Path, **options: Any) -> OpenedModel:
    config = EngineCoreConfig(engines_address="ipc:///unused", model=str(folder), **options)
    return open_mlx_device(config, lambda _share, _name: None)


def device_of(folder: Path, **options: Any) -> MlxDevice:
    device = opened(folder, **options).device
    assert isinstance(device, MlxDevice)
    return device


def random_prompts(count: int, seed: int) -> list[list[int]]:
    """Some begin alike."""
    draw = random.Random(seed)
    shared = [draw.randrange(VOCAB) for _ in range(150)]
    lengths = [(draw.choice([0, 3, 20, 150]), draw.choice([1, 2, 5, 30, 70])) for _ in range(count)]
    return [shared[:begin] + [draw.randrange(VOCAB) for _ in range(end)] for begin, end in lengths]


def greedy_requests(count: int = 15) -> list[Request]:
    return [Request(prompt, GREEDY) for prompt in random_prompts(count, seed=1)]


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_greedy_requests_get_what_mlx_lm_gives_one_sequence(model_type: str, lookahead: bool, tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m", model_type))
    requests = greedy_requests()
    copies = device.prefix_block_tokens > 0 and not device.checkpoint_tokens
    driver = RandomDriver(device, seed=2, rows=5, lookahead=lookahead, copies=copies)
    outputs = driver.serve(requests)
    device.check_invariants()
    model = tiny_model(model_type)
    assert outputs == [greedy_alone(model, r.prompt, GREEDY.max_tokens) for r in requests]
    assert driver.moves > 5 and (driver.copied_tokens > 0) is copies


def random_sampling(draw: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=12,
        seed=draw.getrandbits(64),
        temperature=draw.choice([0.0, 0.7, 1.3]),
        top_p=draw.choice([1.0, 0.8]),
        top_k=draw.choice([0, 10]),
        repetition_penalty=draw.choice([1.0, 1.3]),
        frequency_penalty=draw.choice([0.0, 0.5]),
        min_tokens=draw.choice([0, 6]),
        logit_bias=draw.choice([{}, {5: 3.0}]),
    )


@pytest.mark.parametrize("model_type", ["qwen3", "mamba"])
def test_seeded_requests_repeat_exactly_whatever_runs_beside_them(model_type: str, tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m", model_type))
    draw = random.Random(5)
    prompts = random_prompts(15, seed=3)
    samplings = [random_sampling(draw) for _ in prompts]
    outputs = []
    for seed, rows, lookahead in ((1, 5, False), (2, 3, True), (3, 1, False)):
        requests = [Request(prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
        driver = RandomDriver(device, seed, rows, lookahead, copies=model_type == "qwen3")
        outputs.append(driver.serve(requests))
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({tuple(output) for output in outputs[0]}) > len(prompts) // 2


def test_a_device_without_requests_holds_weights_alone(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    before = mx.get_active_memory()
    device = device_of(folder)
    weights = mx.get_active_memory() - before
    samplings = [SamplingParams(max_tokens=5, repetition_penalty=1.2, seed=i) for i in range(8)]
    RandomDriver(device, seed=1, rows=5).serve([Request([1, 2, 3], sampling) for sampling in samplings])
    mx.synchronize()
    assert mx.get_active_memory() - before <= weights


def admission(row: int = 0, prompt: Sequence[int] = (1,), output: Sequence[int] = ()) -> Admission:
    return Admission(row, Slot(0, row), prompt, output, GREEDY)


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(admissions=[admission(prompt=[1, VOCAB])]),
        StepPlan(admissions=[admission(output=[-1])]),
        StepPlan(admissions=[admission()], decodes=[DecodeRow(0, 0, VOCAB, 0)]),
        StepPlan(admissions=[admission()], prefills=[PrefillChunk(0, 0, [3, 2**31])]),
    ],
)
def test_ids_outside_of_the_vocabulary_are_refused(plan: StepPlan, tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"))
    with pytest.raises(PlanError, match="vocabulary"):
        device.submit(msgspec.structs.replace(plan, pool_slots=[1, 0, 0, 0]))


def test_a_token_that_no_step_sampled_is_refused(tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"))
    joined = StepPlan(pool_slots=[2, 0, 0, 0], admissions=[admission(0), admission(1)], decodes=[DecodeRow(0, 0, 5, 0)])
    device.submit(joined)
    with pytest.raises(PlanError, match="the step before sampled"):
        device.submit(StepPlan(pool_slots=[2, 0, 0, 0], decodes=[DecodeRow(1, 0, None, 0)]))


def test_no_more_than_two_plans_are_taken_before_one_is_collected(tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"))
    for _ in range(2):
        device.submit(StepPlan())
    with pytest.raises(PlanError, match="not collected"):
        device.submit(StepPlan())
    assert device.collect().token_ids == []
    device.submit(StepPlan())


def test_a_step_that_is_submitted_early_writes_in_place(tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"), max_num_seqs=64)
    rows = range(64)
    prompt = [3] * 100
    plan = StepPlan(
        pool_slots=[0, 0, 0, 64],
        admissions=[Admission(row, Slot(3, row), prompt, (), GREEDY) for row in rows],
        prefills=[PrefillChunk(row, 0, prompt[:-1]) for row in rows],
    )
    device.submit(plan)
    device.collect()
    one_buffer = 64 * 2 * 2048 * 8 * 4
    for step in range(6):
        token_id = prompt[-1] if step == 0 else None
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        decodes = [DecodeRow(row, 99 + step, token_id, step) for row in rows]
        device.submit(StepPlan(pool_slots=[0, 0, 0, 64], decodes=decodes))
        if step:
            device.collect()
        assert mx.get_peak_memory() - active < one_buffer / 2


def test_time_that_the_device_waited_for_a_plan_is_not_counted(tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"))
    start_s = time.monotonic()
    device.submit(StepPlan(pool_slots=[1, 0, 0, 0], admissions=[admission()], decodes=[DecodeRow(0, 0, 5, 0)]))
    device.submit(StepPlan(pool_slots=[1, 0, 0, 0], decodes=[DecodeRow(0, 1, None, 1)]))
    elapsed_s = [device.collect().elapsed_s for _ in range(2)]
    assert min(elapsed_s) > 0
    assert sum(elapsed_s) <= time.monotonic() - start_s


def test_the_card_describes_the_loaded_model(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "tiny-llama")
    card = opened(folder).card
    assert (card.name, card.vocab_size, card.max_model_len, card.eos_token_ids) == ("tiny-llama", VOCAB, 2048, (2, 3))
    assert opened(folder, served_model_name="other", max_model_len=77).card.max_model_len == 77
    assert opened(folder, served_model_name="other").card.name == "other"


def test_the_kv_cache_takes_the_memory_that_it_is_given(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    per_token, per_layer, rows = 3 * 2 * 8 * 2 * 4, 2 * 8 * 2 * 4, 4
    budget = (per_token + per_layer) * 4096 // 256 * 257
    assert opened(folder, kv_cache_memory_bytes=budget, max_num_seqs=rows).device.kv_capacity_tokens == 4096
    assert opened(folder, kv_cache_memory_bytes=budget - 1, max_num_seqs=rows).device.kv_capacity_tokens == 3840


def test_an_engine_core_counts_on_its_share_of_the_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model_folder(tmp_path / "m")
    monkeypatch.setattr(mlx_device, "device_memory_bytes", lambda: 2**30)
    whole, quarter = (opened(folder, memory_share=share).device.kv_capacity_tokens for share in (1.0, 0.25))
    assert quarter == pytest.approx(whole / 4, rel=0.1)


def test_a_small_kv_cache_lowers_the_length_unless_a_length_was_asked_for(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    small = {"kv_cache_memory_bytes": 1_000_000, "max_num_seqs": 4}
    model = opened(folder, **small)
    assert model.card.max_model_len == model.device.kv_capacity_tokens < 2048
    with pytest.raises(ModelRefused, match="does not fit the KV cache"):
        opened(folder, max_model_len=2000, **small)
    with pytest.raises(ModelRefused, match="too few"):
        opened(folder, kv_cache_memory_bytes=1000)


@pytest.mark.parametrize(
    ("model_type", "level", "reason"),
    [
        ("llama", "INFO", "prefill and decode in one forward, and the self test agrees"),
        ("mamba", "INFO", "decode in one forward, and the self test agrees (ArraysCache)"),
        ("afm7", "WARNING", "logits differ"),
        ("gpt_bigcode", "WARNING", "does not accept slot caches"),
    ],
)
def test_the_choice_of_runner_is_logged_once_with_its_reason(
    model_type: str, level: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        opened(write_model_folder(tmp_path / "m", model_type))
    records = [record for record in caplog.records if "the model runs" in record.message]
    assert [record.levelname for record in records] == [level]
    assert reason in records[0].message


def test_a_model_that_is_known_to_be_wrong_in_slots_is_not_tried_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(UNFIT_FOR_SLOTS, "llama", "it is known")
    opened(write_model_folder(tmp_path / "m", "llama"))
    assert "one row at a time" in caplog.text and "it is known" in caplog.text


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="no such directory"):
        opened(tmp_path / "nowhere")
