import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import CONFIGS, VOCAB, greedy_alone, tiny_model, write_model_folder

from engine_core.config import EngineCoreConfig
from engine_core.device import Admission, DecodeRow, ModelRefused, OpenedModel, PrefillChunk, StepPlan
from engine_core.kv_budget import round_kv_length
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


class _Request:
    def __init__(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.output: list[int] = []
        self.row = -1
        self.fed = 0

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]

    @property
    def prefilled(self) -> bool:
        return self.fed == len(self.tokens) - 1

    def take_chunk(self, longest: int) -> PrefillChunk:
        start, self.fed = self.fed, min(self.fed + longest, len(self.tokens) - 1)
        return PrefillChunk(self.row, start, self.tokens[start : self.fed])

    def take_decode(self) -> DecodeRow:
        self.fed += 1
        return DecodeRow(self.row, self.fed - 1, self.tokens[self.fed - 1], len(self.output))


def serve(device: MlxDevice, requests: Sequence[_Request], seed: int, rows: int = 5) -> None:
    """Runs all requests to their ends with random joins, pauses and preemptions, a few at a time."""
    draw, waiting, running = random.Random(seed), list(requests), list[_Request]()
    releases: list[int] = []
    while waiting or running:
        admitted = []
        if running and draw.random() < 0.03:
            waiting.append(preempted := running.pop(draw.randrange(len(running))))
            releases.append(preempted.row)
        while waiting and len(running) < rows and draw.random() < 0.6:
            request = waiting.pop(draw.randrange(len(waiting)))
            request.row = min(set(range(rows)) - {other.row for other in running})
            request.fed = 0
            running.append(request)
            admitted.append(request)
        prefills = [r.take_chunk(draw.randint(1, 9)) for r in [r for r in running if not r.prefilled][:2]]
        decoding = [request for request in running if request.prefilled and draw.random() < 0.9]
        plan = StepPlan(
            releases=releases,
            admissions=[Admission(r.row, r.prompt, r.output[:], r.sampling) for r in admitted],
            kv_rows=max((r.row + 1 for r in running), default=0),
            kv_length=round_kv_length(max((len(r.tokens) for r in running), default=0)),
            prefills=prefills,
            decodes=[request.take_decode() for request in decoding],
        )
        sampled = device.run(plan)
        device.check_invariants()
        for request, token in zip(decoding, sampled, strict=True):
            request.output.append(token)
        ended = [request for request in decoding if len(request.output) == request.sampling.max_tokens]
        releases = [request.row for request in ended]
        running = [request for request in running if request not in ended]
    device.run(StepPlan(releases=releases))


def random_prompts(count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(draw.choice([1, 2, 5, 30, 70]))] for _ in range(count)]


@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_greedy_requests_get_what_mlx_lm_gives_one_sequence(model_type: str, tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m", model_type))
    requests = [_Request(prompt, GREEDY) for prompt in random_prompts(15, seed=1)]
    serve(device, requests, seed=2)
    model = tiny_model(model_type)
    assert [r.output for r in requests] == [greedy_alone(model, r.prompt, GREEDY.max_tokens) for r in requests]


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
    for seed, rows in ((1, 5), (2, 3), (3, 1)):
        requests = [_Request(prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
        serve(device, requests, seed, rows)
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({tuple(output) for output in outputs[0]}) == len(prompts)


def test_a_device_without_requests_holds_weights_alone(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    before = mx.get_active_memory()
    device = device_of(folder)
    weights = mx.get_active_memory() - before
    samplings = [SamplingParams(max_tokens=5, repetition_penalty=1.2, seed=i) for i in range(8)]
    serve(device, [_Request([1, 2, 3], sampling) for sampling in samplings], seed=1)
    mx.synchronize()
    assert mx.get_active_memory() - before <= weights


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(admissions=[Admission(0, [1, VOCAB], [], GREEDY)]),
        StepPlan(admissions=[Admission(0, [1], [-1], GREEDY)]),
        StepPlan(
            admissions=[Admission(0, [1], [], GREEDY)], kv_rows=1, kv_length=256, decodes=[DecodeRow(0, 0, VOCAB, 0)]
        ),
        StepPlan(
            admissions=[Admission(0, [1], [], GREEDY)],
            kv_rows=1,
            kv_length=256,
            prefills=[PrefillChunk(0, 0, [3, 2**31])],
        ),
    ],
)
def test_ids_outside_of_the_vocabulary_are_refused(plan: StepPlan, tmp_path: Path) -> None:
    device = device_of(write_model_folder(tmp_path / "m"))
    with pytest.raises(PlanError, match="vocabulary"):
        device.run(plan)


def test_the_card_describes_the_loaded_model(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "tiny-llama")
    card = opened(folder).card
    assert (card.name, card.vocab_size, card.max_model_len, card.eos_token_ids) == ("tiny-llama", VOCAB, 2048, (2, 3))
    assert opened(folder, served_model_name="other", max_model_len=77).card.max_model_len == 77
    assert opened(folder, served_model_name="other").card.name == "other"


def test_the_kv_cache_takes_the_memory_that_it_is_given(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    per_token, per_layer, rows = 3 * 2 * 8 * 2 * 4, 2 * 8 * 2 * 4, 4
    budget = (per_token + per_layer) * 4096 + rows * per_token
    assert opened(folder, kv_cache_memory_bytes=budget, max_num_seqs=rows).device.kv_capacity_tokens == 4096
    assert opened(folder, kv_cache_memory_bytes=budget - 1, max_num_seqs=rows).device.kv_capacity_tokens == 3840


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
        ("llama", "INFO", "self test agrees"),
        ("mamba", "INFO", "ArraysCache"),
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
