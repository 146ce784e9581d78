"""How much prefill a step may hold, learned from how long steps take."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.chunk_budget import (
    FIRST_CHUNK,
    MIXED_STEPS_IN_A_ROW,
    MOST_PREFILL_S,
    PREFILL_SHARE,
    SMALLEST_CHUNK,
    StepShape,
    TimedChunkBudget,
    round_chunk,
)

MOST = 2_048


class SimulatedSteps:
    """A budget, and a device on which a step takes decode_s and token_s for each prefilled token."""

    def __init__(self, decode_s: float, token_s: float, noise: float = 0.0) -> None:
        self.budget = TimedChunkBudget(MOST)
        self.decode_s, self.token_s, self.noise = decode_s, token_s, noise
        self._random = random.Random(1)

    def step(self, decode_rows: int, prefill_tokens: int | None = None, joining: int = 0) -> int:
        """One step, with as much prefill as the budget allows or less; returns how much."""
        tokens = self.budget.prefill_tokens(decode_rows, joining)
        tokens = tokens if prefill_tokens is None else min(tokens, prefill_tokens)
        elapsed_s = self.decode_s * (decode_rows > 0) + self.token_s * tokens
        elapsed_s *= 1 + self.noise * self._random.uniform(-1, 1)
        self.budget.observe(StepShape(tokens, decode_rows), elapsed_s)
        self.budget.check_invariants()
        return tokens


def test_it_starts_small_and_then_takes_as_much_as_the_time_allows() -> None:
    steps = SimulatedSteps(0.1, 0.004)
    assert steps.step(0) == FIRST_CHUNK
    assert steps.step(0) == round_chunk(int(MOST_PREFILL_S / 0.004)) == 192


def test_the_bound_in_tokens_is_kept_however_fast_the_device_is() -> None:
    steps = SimulatedSteps(0.01, 1e-6)
    steps.step(0)
    assert steps.step(0) == MOST
    assert TimedChunkBudget(7).prefill_tokens(0, 1) == 7
    with pytest.raises(ValueError, match="no prefill"):
        TimedChunkBudget(0)


def test_the_first_step_with_decode_rows_shows_what_they_cost() -> None:
    steps = SimulatedSteps(0.1, 0.002)
    steps.step(0)
    assert [steps.step(1) for _ in range(3)] == [0, 80, 80]
    assert round_chunk(int(PREFILL_SHARE * 0.1 / 0.002)) == 80


def test_many_who_join_a_few_streams_may_stall_them_longer_but_never_for_long() -> None:
    steps = SimulatedSteps(0.1, 0.001)
    steps.step(0)
    steps.step(16)
    taken = [steps.step(16, joining=joining) for joining in (1, 4, 8, 16)]
    assert taken == [round_chunk(175), round_chunk(175), round_chunk(350), round_chunk(700)]
    assert steps.step(16, joining=500) == round_chunk(int(MOST_PREFILL_S / 0.001))


def test_prefill_goes_on_in_small_chunks_where_even_these_take_long() -> None:
    steps = SimulatedSteps(0.01, 0.1)
    steps.step(0)
    steps.step(4)
    assert [steps.step(4) for _ in range(3)] == [SMALLEST_CHUNK] * 3


def test_costs_that_grow_are_followed() -> None:
    steps = SimulatedSteps(0.1, 0.001)
    steps.step(0)
    steps.step(8)
    for step in range(110):
        tokens = steps.step(8)
        taken = steps.token_s * tokens / steps.decode_s
        assert taken <= 1.1 * PREFILL_SHARE, step
        steps.token_s *= 1.02
    assert steps.token_s > 0.008


def test_one_slow_step_changes_nothing() -> None:
    steps = SimulatedSteps(0.1, 0.002)
    steps.step(0)
    for _ in range(5):
        steps.step(8, 0)
    for _ in range(5):
        steps.step(8)
    before = steps.budget.prefill_tokens(8, 1)
    steps.budget.observe(StepShape(64, 8), 5.0)
    steps.budget.observe(StepShape(0, 8), 5.0)
    assert steps.budget.prefill_tokens(8, 1) == before


def test_under_prefill_without_end_decodes_are_measured_now_and_then() -> None:
    steps = SimulatedSteps(0.1, 0.002)
    steps.step(0)
    taken = [steps.step(8) for _ in range(2 * MIXED_STEPS_IN_A_ROW + 3)]
    alone = [index for index, tokens in enumerate(taken) if tokens == 0]
    assert alone == [0, MIXED_STEPS_IN_A_ROW + 1, 2 * MIXED_STEPS_IN_A_ROW + 2]


def test_a_batch_that_has_grown_is_measured_again_and_one_that_has_shrunk_is_taken_to_cost_less() -> None:
    steps = SimulatedSteps(0.1, 0.001)
    steps.step(0)
    assert [steps.step(1), steps.step(1)] == [0, round_chunk(175)]
    assert [steps.step(2), steps.step(3), steps.step(4)] == [0, round_chunk(175), 0]
    steps.decode_s = 0.4
    assert steps.step(16) == 0
    assert steps.budget.decode_s(16) == pytest.approx(0.4)
    assert steps.step(4) == round_chunk(175)


def test_steps_of_unknown_length_stop_nobody() -> None:
    budget = TimedChunkBudget(MOST)
    taken = []
    for _ in range(6):
        taken.append(budget.prefill_tokens(4, 1))
        budget.observe(StepShape(taken[-1], 4), 0.0)
    assert taken == [0] + [SMALLEST_CHUNK] * 5


def test_chunks_come_in_few_sizes() -> None:
    sizes = {round_chunk(tokens) for tokens in range(16, 513)}
    assert len(sizes) == 21
    assert all(0 <= tokens - round_chunk(tokens) < 64 for tokens in range(513))


@given(
    st.floats(1e-4, 10),
    st.floats(1e-6, 1),
    st.floats(0, 0.2),
    st.lists(st.tuples(st.integers(0, 64), st.sampled_from([None, 1, 20, 300])), max_size=150),
)
def test_whatever_comes_prefill_never_stops_for_long_and_keeps_its_time(
    decode_s: float, token_s: float, noise: float, trace: list[tuple[int, int | None]]
) -> None:
    steps = SimulatedSteps(decode_s, token_s, noise)
    without = 0
    for decode_rows, wanted in trace:
        tokens = steps.step(decode_rows, wanted)
        assert tokens <= MOST
        without = 0 if tokens else without + 1
        assert without <= 8, "the batch can double 6 times"
