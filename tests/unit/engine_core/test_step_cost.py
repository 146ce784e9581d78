"""What steps cost is learned from how long they took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.step_cost import MOST_CHANGE, StepCost, StepShape


def learned(shapes: list[tuple[int, int]], base_s: float, row_s: float, token_s: float, noise: float = 0.0) -> StepCost:
    """From steps of so many tokens and rows."""
    cost, draw = StepCost(), random.Random(1)
    for tokens, rows in shapes:
        seconds = base_s + row_s * rows + token_s * tokens
        cost.observe(StepShape(tokens, rows), seconds * (1 + noise * draw.uniform(-1, 1)))
        cost.check_invariants()
    return cost


def test_nothing_is_known_before_the_first_step() -> None:
    cost = StepCost()
    assert not cost.is_known
    assert cost.seconds(StepShape(10, 10)) == 0
    cost.observe(StepShape(0, 0), 1.0)
    cost.observe(StepShape(10, 0), 0.0)
    assert not cost.is_known


def test_the_first_step_is_split_in_a_plausible_way() -> None:
    cost = learned([(64, 0)], 0.055, 0.002, 0.0024)
    assert cost.seconds(StepShape(64, 0)) == pytest.approx(0.055 + 64 * 0.0024)
    assert 0.5 < cost.seconds(StepShape(0, 8)) / (0.055 + 8 * 0.002) < 2


@pytest.mark.parametrize("costs", [(0.055, 0.002, 0.0024), (0.009, 0.0003, 0.00025), (0.02, 0.02, 0.01)])
def test_a_varied_load_shows_all_three_costs(costs: tuple[float, float, float]) -> None:
    draw = random.Random(2)
    shapes = [(draw.choice([0, 0, 16, 64, 200]), draw.randint(1, 32)) for _ in range(60)]
    cost = learned(shapes, *costs, noise=0.05)
    base_s, row_s, token_s = costs
    for tokens, rows in [(0, 1), (0, 8), (0, 32), (128, 16)]:
        assert cost.seconds(StepShape(tokens, rows)) == pytest.approx(base_s + rows * row_s + tokens * token_s, rel=0.2)
    step_s = 3 * (base_s + 16 * row_s)
    wanted = (step_s - base_s - 16 * row_s) / token_s
    assert cost.prefill_tokens(step_s, 16) == pytest.approx(wanted, rel=0.3)


def test_decodes_are_known_from_steps_that_all_had_prefill() -> None:
    cost = learned([(tokens, 16) for tokens in (64, 80, 30, 96, 50, 64, 16) * 6], 0.055, 0.002, 0.0024)
    assert cost.seconds(StepShape(0, 16)) == pytest.approx(0.055 + 16 * 0.002, rel=0.25)


def test_what_a_long_steady_time_does_not_show_is_kept() -> None:
    draw = random.Random(3)
    varied = [(draw.choice([0, 64]), draw.randint(1, 16)) for _ in range(40)]
    before = learned(varied, 0.05, 0.002, 0.002).prefill_tokens(1.0, 0)
    after = learned([*varied, *[(0, 8)] * 3_000], 0.05, 0.002, 0.002).prefill_tokens(1.0, 0)
    assert after == pytest.approx(before, rel=0.05)


def test_costs_that_grow_are_followed() -> None:
    cost, token_s = StepCost(), 0.001
    for _ in range(120):
        for shape in (StepShape(0, 8), StepShape(64, 8)):
            cost.observe(shape, 0.1 + token_s * shape.prefill_tokens)
        token_s *= 1.02
    assert cost.seconds(StepShape(64, 8)) == pytest.approx(0.1 + token_s * 64, rel=0.1)


def test_one_slow_step_changes_little() -> None:
    draw = random.Random(4)
    cost = learned([(draw.choice([0, 64]), draw.randint(1, 16)) for _ in range(40)], 0.05, 0.002, 0.002)
    before = cost.seconds(StepShape(64, 8))
    cost.observe(StepShape(64, 8), 60.0)
    assert cost.seconds(StepShape(64, 8)) <= before * (1 + 0.4 * (MOST_CHANGE - 1))


@given(
    st.lists(
        st.tuples(st.integers(0, 512), st.integers(0, 64), st.floats(0, 1e4, allow_nan=False)), min_size=1, max_size=60
    )
)
def test_whatever_is_observed_costs_stay_above_zero(steps: list[tuple[int, int, float]]) -> None:
    cost = StepCost()
    for tokens, rows, seconds in steps:
        cost.observe(StepShape(tokens, rows), seconds)
        cost.check_invariants()
        assert cost.seconds(StepShape(1, 1)) < float("inf")
