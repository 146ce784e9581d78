"""How much prefill a step may hold, by how long steps take."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.chunk_budget import (
    FIRST_CHUNK,
    MOST_STEP_S,
    SMALLEST_CHUNK,
    STEP_FACTOR,
    TimedChunkBudget,
    round_chunk,
)
from engine_core.step_cost import StepShape

MOST = 2_048


class SimulatedSteps:
    """A budget, and a device on which a step takes base_s, row_s for each row and token_s for each prefilled token."""

    def __init__(self, base_s: float, row_s: float, token_s: float, noise: float = 0.0) -> None:
        self.budget = TimedChunkBudget(MOST)
        self.base_s, self.row_s, self.token_s, self.noise = base_s, row_s, token_s, noise
        self._random = random.Random(1)

    def seconds(self, rows: int, tokens: int = 0) -> float:
        return self.base_s + self.row_s * rows + self.token_s * tokens

    def step(self, rows: int, prefill_tokens: int | None = None, joining: int = 0) -> int:
        """One step, with as much prefill as the budget allows or less; returns how much."""
        tokens = self.budget.prefill_tokens(rows, joining)
        tokens = tokens if prefill_tokens is None else min(tokens, prefill_tokens)
        noise = 1 + self.noise * self._random.uniform(-1, 1)
        self.budget.observe(StepShape(tokens, rows), self.seconds(rows, tokens) * noise)
        self.budget.check_invariants()
        return tokens

    def settle(self, rows: int) -> None:
        """Shows it steps of many kinds, so many rows in the last ones."""
        for _ in range(4):
            for tokens in (0, 32, 0, 500, 64):
                self.step(self._random.randint(1, 32), tokens)
        for tokens in (0, 32, 0, 64, 0):
            self.step(rows, tokens)


def test_it_starts_small_and_then_takes_as_much_as_the_time_allows() -> None:
    steps = SimulatedSteps(0.055, 0.002, 0.0024)
    assert steps.step(0) == FIRST_CHUNK
    for _ in range(5):
        tokens = steps.step(0)
    assert 0.8 * MOST_STEP_S < steps.seconds(0, tokens) <= 1.05 * MOST_STEP_S


def test_the_bound_in_tokens_is_kept_however_fast_the_device_is() -> None:
    steps = SimulatedSteps(0.001, 1e-6, 1e-6)
    steps.step(0)
    assert steps.step(0) == MOST
    assert TimedChunkBudget(7).prefill_tokens(0, 1) == 7
    with pytest.raises(ValueError, match="no prefill"):
        TimedChunkBudget(0)


@pytest.mark.parametrize("rows", [1, 8, 16, 32])
def test_beside_decode_rows_a_step_takes_about_twice_their_time(rows: int) -> None:
    steps = SimulatedSteps(0.055, 0.002, 0.0024, noise=0.05)
    steps.settle(rows)
    for _ in range(20):
        tokens = steps.step(rows, joining=1)
        assert 1.5 < steps.seconds(rows, tokens) / steps.seconds(rows) < 2.4


def test_many_who_join_a_few_streams_may_stall_them_for_the_time_of_a_step_of_all() -> None:
    steps = SimulatedSteps(0.055, 0.004, 0.0024)
    steps.settle(4)
    tokens = steps.budget.prefill_tokens(4, 28)
    assert steps.seconds(4, tokens) == pytest.approx(STEP_FACTOR * steps.seconds(32), rel=0.2)
    assert steps.seconds(4, steps.budget.prefill_tokens(4, 5_000)) < 1.2 * MOST_STEP_S


def test_prefill_goes_on_in_small_chunks_where_even_these_take_long() -> None:
    steps = SimulatedSteps(0.01, 0.001, 0.1)
    steps.settle(4)
    assert [steps.step(4) for _ in range(3)] == [SMALLEST_CHUNK] * 3


def test_costs_that_grow_are_followed() -> None:
    steps = SimulatedSteps(0.1, 0.001, 0.001)
    steps.settle(8)
    for step in range(210):
        tokens = steps.step(8)
        assert steps.seconds(8, tokens) < 3 * steps.seconds(8), step
        steps.token_s *= 1.01
    assert steps.token_s > 0.008


def test_steps_of_unknown_length_stop_nobody() -> None:
    budget = TimedChunkBudget(MOST)
    for _ in range(6):
        assert budget.prefill_tokens(4, 1) == FIRST_CHUNK
        budget.observe(StepShape(FIRST_CHUNK, 4), 0.0)


def test_chunks_come_in_few_sizes() -> None:
    sizes = {round_chunk(tokens) for tokens in range(16, 513)}
    assert len(sizes) == 21
    assert all(0 <= tokens - round_chunk(tokens) < 64 for tokens in range(513))


@given(
    st.floats(1e-4, 10),
    st.floats(0, 0.1),
    st.floats(1e-6, 1),
    st.floats(0, 0.2),
    st.lists(st.tuples(st.integers(0, 64), st.sampled_from([None, 1, 20, 300]), st.integers(0, 64)), max_size=100),
)
def test_whatever_comes_prefill_goes_on_within_its_bound(
    base_s: float, row_s: float, token_s: float, noise: float, trace: list[tuple[int, int | None, int]]
) -> None:
    steps = SimulatedSteps(base_s, row_s, token_s, noise)
    for rows, wanted, joining in trace:
        steps.step(rows, wanted, joining)
        assert SMALLEST_CHUNK <= steps.budget.prefill_tokens(rows, joining) <= MOST
