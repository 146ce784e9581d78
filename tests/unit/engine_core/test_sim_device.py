"""The simulated device and its model card."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine_core.config import EngineCoreConfig
from engine_core.device import (
    Admission,
    BlockId,
    BlockRestore,
    BlockSave,
    DecodeRow,
    ModelRefused,
    PrefillChunk,
    RowCopy,
    Slot,
    StepPlan,
    StepResult,
)
from engine_core.sim_card import IM_END, sim_card
from engine_core.sim_device import SimDevice, SimulatedFailure, open_sim_device
from engine_core.sim_options import SimOptions, parse_sim_options
from protocol.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=100, temperature=0.0)
INSTANT = SimOptions(prefill_ms_per_token=0, decode_ms=0, decode_ms_per_row=0)
TOKENIZER = Tokenizer.from_str(sim_card("sim", 100, 259).tokenizer_json)


def run(device: SimDevice, plan: StepPlan) -> StepResult:
    device.submit(plan)
    return device.collect()


def admission(
    row: int, prompt: list[int], output: tuple[int, ...] = (), sampling: SamplingParams = GREEDY
) -> Admission:
    return Admission(row, Slot(0, row), prompt, output, sampling)


def generate(
    device: SimDevice, prompt: list[int], count: int, sampling: SamplingParams = GREEDY, row: int = 0
) -> bytes:
    tokens: list[int] = []
    for position in range(count):
        admissions = [admission(row, prompt, sampling=sampling)] if position == 0 else []
        decode = DecodeRow(row, len(prompt) - 1 + position, 1, position)
        tokens += run(device, StepPlan(admissions=admissions, decodes=[decode])).token_ids
    run(device, StepPlan(releases=[row]))
    return bytes(token % 256 for token in tokens)


def test_tokens_depend_on_prompt_position_and_seed_alone() -> None:
    device = SimDevice(INSTANT)
    text = generate(device, [1, 2], 50)
    assert text == generate(SimDevice(INSTANT), [1, 2], 50, row=7)
    assert text != generate(device, [1, 3], 50)
    assert len(set(text)) > 5
    seeded = [generate(device, [1, 2], 50, SamplingParams(max_tokens=100, seed=seed)) for seed in (1, 2, 1)]
    assert seeded[0] == seeded[2] != seeded[1]
    assert text == generate(device, [1, 2], 50, SamplingParams(max_tokens=100, seed=9, temperature=0.0))


def test_tokens_are_letters_and_spaces() -> None:
    text = generate(SimDevice(INSTANT), [7], 500).decode()
    assert text.replace(" ", "").isalpha()
    assert " " in text


def test_a_preempted_request_goes_on_where_it_was() -> None:
    device = SimDevice(INSTANT)
    whole = generate(device, [1, 2], 10)
    resumed = admission(3, [1, 2], tuple(whole[:6]))
    [token] = run(device, StepPlan(admissions=[resumed], decodes=[DecodeRow(3, 7, whole[5], 6)])).token_ids
    assert token == whole[6]


def test_the_end_of_sequence_comes_when_asked_and_not_before_min_tokens() -> None:
    device = SimDevice(SimOptions(decode_ms=0, decode_ms_per_row=0, eos_after=3))
    assert generate(device, [1], 5)[3] == IM_END % 256
    assert b"\0" not in generate(device, [1], 5)[:3]
    patient = SamplingParams(max_tokens=100, min_tokens=5)
    assert generate(device, [1], 7, patient).index(b"\0") == 5


def test_a_step_takes_the_time_that_it_is_said_to_take() -> None:
    device = SimDevice(SimOptions(prefill_ms_per_token=2, decode_ms=20, decode_ms_per_row=5))
    admissions = [admission(row, [1] * 11) for row in range(2)]
    began = time.perf_counter()
    prefill = run(device, StepPlan(admissions=admissions, prefills=[PrefillChunk(0, 0, [1] * 10)]))
    prefilled = time.perf_counter()
    decode = run(device, StepPlan(decodes=[DecodeRow(0, 10, 1, 0), DecodeRow(1, 10, 1, 0)]))
    decoded = time.perf_counter()
    assert prefilled - began >= prefill.elapsed_s == pytest.approx(0.020)
    assert decoded - prefilled >= decode.elapsed_s == pytest.approx(0.030)


def test_a_second_step_that_waits_begins_when_the_first_has_ended() -> None:
    device = SimDevice(SimOptions(decode_ms=30, decode_ms_per_row=0))
    began = time.perf_counter()
    device.submit(StepPlan(admissions=[admission(0, [1])], decodes=[DecodeRow(0, 0, 1, 0)]))
    device.submit(StepPlan(decodes=[DecodeRow(0, 1, None, 1)]))
    assert time.perf_counter() - began < 0.03, "it is not waited for"
    results = [device.collect(), device.collect()]
    assert time.perf_counter() - began >= 0.06
    assert bytes(token for result in results for token in result.token_ids) == generate(SimDevice(INSTANT), [1], 2)
    assert [result.elapsed_s for result in results] == [pytest.approx(0.03)] * 2


def test_blocks_take_the_time_that_they_are_said_to_take() -> None:
    device = SimDevice(SimOptions(prefill_ms_per_token=0, decode_ms=0, decode_ms_per_row=0, restore_ms_per_token=0.1))
    run(device, StepPlan(admissions=[admission(row, [1] * 200) for row in range(3)]))
    saves = [BlockSave(BlockId(number), 0, 64 * number) for number in range(3)]
    began = time.perf_counter()
    run(
        device,
        StepPlan(saves=saves, copies=[RowCopy(0, 2, 28)], restores=[BlockRestore(1, [BlockId(0), BlockId(1)], 100)]),
    )
    assert time.perf_counter() - began >= 0.1 * (3 * 64 + 28 + 100) / 1_000


def test_the_step_that_shall_fail_fails() -> None:
    device = SimDevice(SimOptions(decode_ms=0, decode_ms_per_row=0, fail_at_step=3))
    run(device, StepPlan(releases=[]))  # computes nothing: no step
    generate(device, [1], 2)
    with pytest.raises(SimulatedFailure, match="step 3"):
        generate(device, [1], 1)


def test_options_are_read_from_the_model_name() -> None:
    options = parse_sim_options("sim:decode_ms=2.5,max_model_len=1000,eos_after=7")
    assert (options.decode_ms, options.max_model_len, options.eos_after) == (2.5, 1000, 7)
    assert parse_sim_options("sim:lookahead=true").lookahead
    assert parse_sim_options("sim:") == SimOptions()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("sim:speed=1", "speed"),
        ("sim:decode_ms=fast", "decode_ms"),
        ("sim:decode_ms=-1", "decode_ms"),
        ("sim:decode_ms=nan", "decode_ms"),
        ("sim:load_s=inf", "load_s"),
        ("sim:vocab_size=100", "vocab_size"),
        ("sim:decode_ms", "key=value"),
        ("sim:decode_ms=1,decode_ms=2", "twice"),
    ],
)
def test_options_that_are_wrong_are_refused_by_name(model: str, words: str) -> None:
    with pytest.raises(ModelRefused, match=words):
        parse_sim_options(model)


def test_it_opens_under_the_served_name_and_tells_its_progress() -> None:
    config = EngineCoreConfig(
        engines_address="ipc:///x", model="sim:max_model_len=50,vocab_size=300", served_model_name="tiny"
    )
    progress: list[float] = []
    opened = open_sim_device(config, lambda share, _: progress.append(share))
    assert (opened.card.name, opened.card.max_model_len, opened.card.vocab_size) == ("tiny", 50, 300)
    assert opened.device.kv_capacity_tokens == SimOptions().kv_capacity_tokens
    assert progress == sorted(progress)
    assert len(progress) > 3


@pytest.mark.parametrize(
    ("max_model_len", "capacity", "lengths"),
    [(8_192, 65_536, (256, 512, 1_024, 2_048, 4_096, 8_192)), (600, 300, (256,))],
)
def test_its_longest_slot_fits_its_cache(max_model_len: int, capacity: int, lengths: tuple[int, ...]) -> None:
    options = SimOptions(max_model_len=max_model_len, kv_capacity_tokens=capacity)
    assert tuple(SimDevice(options).pool_lengths) == lengths


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_a_token_is_a_byte_and_special_tokens_come_after_them() -> None:
    assert TOKENIZER.encode("aé", add_special_tokens=False).ids == list("aé".encode())
    assert TOKENIZER.encode("<|im_start|>x<|im_end|>").ids == [257, ord("x"), 256]
    assert sim_card("sim", 100, 259).eos_token_ids == (IM_END,)
    assert TOKENIZER.get_vocab_size() == 259
