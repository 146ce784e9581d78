import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import CONFIGS, VOCAB, logits_alone, tiny_model

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.mlx_lm_adapter import trace_model
from engine_core.model_runner import PlanError
from engine_core.slot_runner import SlotRunner


def slot_runner(model: Any, capacity_tokens: int = 100_000, max_rows: int = 64) -> SlotRunner:
    layouts = trace_model(model).layouts
    assert layouts is not None
    return SlotRunner(model, layouts, capacity_tokens, max_rows)


def decode(runner: SlotRunner, *rows: DecodeRow) -> mx.array:
    logits = runner.decode(rows)
    mx.eval(logits, runner.written_arrays())
    runner.check_invariants()
    return logits


def ready(row: int, token_ids: list[int], runner: SlotRunner) -> DecodeRow:
    """Prefills all tokens but the last, and returns the decode row that feeds it."""
    if len(token_ids) > 1:
        runner.prefill(PrefillChunk(row, 0, token_ids[:-1]))
    return DecodeRow(row, len(token_ids) - 1, token_ids[-1], 0)


class _Sequence:
    def __init__(self, model: Any, row: int, token_ids: list[int]) -> None:
        self.row = row
        self.token_ids = token_ids
        self.expected = np.array(logits_alone(model, token_ids))
        self.prefill_to = len(token_ids) // 2
        self.fed = 0


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text", "mamba"])
def test_logits_are_those_of_a_plain_forward_whatever_joins_and_leaves(model_type: str) -> None:
    model, draw = tiny_model(model_type), random.Random(7)
    runner = slot_runner(model)
    waiting = [[draw.randrange(VOCAB) for _ in range(draw.randint(2, 90))] for _ in range(30)]
    running: dict[int, _Sequence] = {}
    worst = 0.0
    while waiting or running:
        free = [row for row in range(6) if row not in running]
        if waiting and free and draw.random() < 0.5:
            row = draw.choice(free)
            running[row] = _Sequence(model, row, waiting.pop())
            runner.admit(row)
        runner.reserve(max(running, default=-1) + 1, 1 + max((s.fed for s in running.values()), default=0) + 40)
        prefilling = [s for s in running.values() if s.fed < s.prefill_to]
        for sequence in prefilling[:1]:
            end = min(sequence.prefill_to, sequence.fed + draw.randint(1, 16))
            runner.prefill(PrefillChunk(sequence.row, sequence.fed, sequence.token_ids[sequence.fed : end]))
            sequence.fed = end
        decoding = [s for s in running.values() if s.fed >= s.prefill_to and draw.random() < 0.8]
        if decoding:
            logits = decode(runner, *[DecodeRow(s.row, s.fed, s.token_ids[s.fed], 0) for s in decoding])
            for index, sequence in enumerate(decoding):
                worst = max(worst, float(np.abs(np.array(logits[index]) - sequence.expected[sequence.fed]).max()))
                sequence.fed += 1
                if sequence.fed == len(sequence.token_ids):
                    del running[sequence.row]
                    runner.release(sequence.row)
        runner.check_invariants()
    assert worst < 1e-4


def test_a_full_row_that_only_runs_along_keeps_its_tokens() -> None:
    model, draw = tiny_model("llama"), random.Random(3)
    runner = slot_runner(model)
    full, other = [[draw.randrange(VOCAB) for _ in range(n)] for n in (257, 30)]
    for row in (0, 1, 2):
        runner.admit(row)
    runner.reserve(3, 256)
    runner.prefill(PrefillChunk(1, 0, full[:256]))
    rows = [ready(0, other, runner), ready(2, other, runner)]
    decode(runner, *rows)
    runner.reserve(3, 257)
    found = decode(runner, DecodeRow(1, 256, full[256], 0))
    assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, full)[-1]), abs=1e-4)


def test_growth_of_rows_and_length_changes_no_result() -> None:
    model, draw = tiny_model("qwen3"), random.Random(4)
    runner = slot_runner(model)
    token_ids = [draw.randrange(VOCAB) for _ in range(600)]
    runner.admit(0)
    for length in (200, 300, 599):
        runner.reserve(1 if length < 300 else 9, length)
        start = {200: 0, 300: 200, 599: 300}[length]
        runner.prefill(PrefillChunk(0, start, token_ids[start:length]))
    runner.reserve(9, 600)
    found = decode(runner, DecodeRow(0, 599, token_ids[599], 0))
    assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, token_ids)[-1]), abs=1e-4)


def test_decode_rows_come_back_in_the_order_given() -> None:
    model = tiny_model("llama")
    runner = slot_runner(model)
    sequences = {4: [5, 6, 7], 1: [8], 3: [9, 9]}
    for row in sequences:
        runner.admit(row)
    runner.reserve(5, 10)
    found = decode(runner, *[ready(row, token_ids, runner) for row, token_ids in sequences.items()])
    for logits, token_ids in zip(found, sequences.values(), strict=True):
        assert np.array(logits) == pytest.approx(np.array(logits_alone(model, token_ids)[-1]), abs=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_step_writes_in_place(model_type: str) -> None:
    """A slice of a buffer that somebody keeps would turn each write into a copy of the whole buffer."""
    model = tiny_model(model_type)
    runner = slot_runner(model)
    for row in range(32):
        runner.admit(row)
    runner.reserve(32, 2048)
    one_buffer = runner.written_arrays()[0].nbytes
    rows = [ready(row, [1, 2, 3], runner) for row in range(32)]
    decode(runner, *rows)
    for step in range(3):
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        runner.prefill(PrefillChunk(0, 3 + 5 * step, [4, 5, 6, 7]))
        decode(runner, DecodeRow(0, 7 + 5 * step, 1, 0), *[DecodeRow(row, 3 + step, 1, 0) for row in range(1, 32)])
        assert mx.get_peak_memory() - active < one_buffer / 2


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "mamba"])
def test_all_memory_is_freed_when_no_row_is_taken(model_type: str) -> None:
    model = tiny_model(model_type)
    runner = slot_runner(model)
    active = mx.get_active_memory()
    runner.admit(3)
    runner.reserve(4, 1000)
    assert mx.get_active_memory() > active
    runner.release(3)
    runner.reserve(0, 0)
    runner.check_invariants()
    assert mx.get_active_memory() == active


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba", "qwen3"])
def test_memory_is_what_the_capacity_was_reckoned_from(model_type: str) -> None:
    model = tiny_model(model_type)
    cost = trace_model(model).cost
    runner = slot_runner(model, capacity_tokens=4 * 512, max_rows=4)
    for row in range(4):
        runner.admit(row)
    runner.reserve(4, 512)
    assert sum(array.nbytes for array in runner.written_arrays()) == 4 * (
        513 * cost.bytes_per_token + cost.bytes_per_row
    )


def test_taken_rows_survive_a_plan_that_asks_for_less() -> None:
    model = tiny_model("llama")
    runner = slot_runner(model, capacity_tokens=512)
    runner.admit(0)
    runner.admit(1)
    runner.reserve(2, 10)
    row = ready(1, [4, 5, 6], runner)
    runner.reserve(0, 0)
    runner.reserve(1, 500)
    found = decode(runner, row)
    assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, [4, 5, 6])[-1]), abs=1e-5)


def test_a_plan_that_would_corrupt_memory_is_refused() -> None:
    runner = slot_runner(tiny_model("llama"))
    runner.admit(0)
    runner.admit(1)
    runner.reserve(2, 256)
    runner.prefill(PrefillChunk(0, 0, [1] * 255))
    decode(runner, DecodeRow(0, 255, 1, 0))
    refused: list[Any] = [
        lambda: runner.decode([DecodeRow(0, 256, 1, 0)]),  # past the end of the row
        lambda: runner.prefill(PrefillChunk(1, 0, [1] * 257)),
        lambda: runner.prefill(PrefillChunk(1, 0, [])),
        lambda: runner.decode([DecodeRow(1, 5, 1, 0)]),  # leaves a gap
        lambda: runner.decode([DecodeRow(1, -1, 1, 0)]),
        lambda: runner.decode([DecodeRow(7, 0, 1, 0)]),  # no such row
        lambda: runner.decode([DecodeRow(1, 0, 1, 0), DecodeRow(1, 0, 2, 0)]),
        lambda: runner.admit(1),
        lambda: runner.release(5),
    ]
    for call in refused:
        with pytest.raises(PlanError):
            call()
    runner.check_invariants()


def test_a_row_beyond_the_buffers_is_refused() -> None:
    runner = slot_runner(tiny_model("llama"))
    runner.admit(0)
    runner.reserve(1, 10)
    runner.admit(5)
    with pytest.raises(PlanError, match="do not fit"):
        runner.prefill(PrefillChunk(5, 0, [1]))


def test_what_a_row_was_used_for_leaves_no_trace_in_its_next_sequence() -> None:
    for model_type in ("gemma3_text", "mamba"):
        model = tiny_model(model_type)
        runner = slot_runner(model)
        token_ids = [7, 8, 9, 10, 11]
        found = []
        for _ in range(2):
            runner.admit(0)
            runner.reserve(1, 256)
            found.append(decode(runner, ready(0, token_ids, runner)))
            runner.release(0)
            runner.admit(0)
            decode(runner, DecodeRow(0, 0, 5, 0))
            runner.release(0)
        assert mx.array_equal(*found)


@pytest.mark.parametrize("model_type", ["mamba", "gemma3_text"])
def test_rows_that_do_not_decode_keep_their_state(model_type: str) -> None:
    model = tiny_model(model_type)
    runner = slot_runner(model)
    idle = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    for row in range(3):
        runner.admit(row)
    runner.reserve(3, 256)
    ready(1, idle[:6], runner)
    others = [ready(row, [row + 1, 2, 3], runner) for row in (0, 2)]
    for step in range(3):
        decode(runner, *[DecodeRow(other.row, 2 + step, other.token_id, 0) for other in others])
        runner.prefill(PrefillChunk(1, 5 + step, idle[5 + step : 6 + step]))
    found = decode(runner, DecodeRow(1, 8, idle[8], 0))
    assert np.array(found[0]) == pytest.approx(np.array(logits_alone(model, idle[:9])[-1]), abs=1e-4)


def test_first_tokens_of_recurrent_sequences_come_back_in_the_order_given() -> None:
    model = tiny_model("mamba")
    runner = slot_runner(model)
    for row in range(4):
        runner.admit(row)
    runner.reserve(4, 256)
    decodes = [DecodeRow(3, 0, 9, 0), ready(1, [4, 5], runner), DecodeRow(0, 0, 8, 0), ready(2, [6, 7], runner)]
    found = decode(runner, *decodes)
    for logits, token_ids in zip(found, ([9], [4, 5], [8], [6, 7]), strict=True):
        assert np.array(logits) == pytest.approx(np.array(logits_alone(model, token_ids)[-1]), abs=1e-5)


def test_neither_a_join_nor_a_leave_nor_a_prefill_copies_the_states_of_others() -> None:
    model = tiny_model("mamba", state_size=64)
    runner = slot_runner(model)
    for row in range(63):
        runner.admit(row)
    runner.reserve(64, 256)
    decode(runner, *[ready(row, [1, 2, 3], runner) for row in range(63)])
    one_array = max(array.nbytes for array in runner.written_arrays())
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    runner.release(5)
    runner.admit(63)
    runner.admit(5)
    runner.reserve(64, 256)
    assert mx.get_peak_memory() <= active
    runner.prefill(PrefillChunk(63, 0, [4, 5, 6, 7]))
    runner.prefill(PrefillChunk(63, 4, [8, 9]))
    assert mx.get_peak_memory() - active < one_array / 2


def test_tiny_models_of_this_test_have_caches_that_slots_can_hold() -> None:
    assert all(trace_model(tiny_model(model_type)).layouts is not None for model_type in CONFIGS)
