"""Rates over the last seconds."""

import pytest

from coordinator.rates import WINDOW_S, Rate


def test_the_rate_is_taken_over_the_window_and_forgets() -> None:
    rate = Rate()
    for step in range(40):
        rate.record(1, 100.0 + step / 4)
    assert rate.per_second(110.0) == pytest.approx(4.0)
    assert rate.per_second(110.0 + WINDOW_S) == 0.0


def test_what_has_just_begun_is_not_diluted_by_the_time_before() -> None:
    rate = Rate()
    for second in (100.0, 101.0):
        rate.record(50, second)
    assert rate.per_second(102.0) == pytest.approx(50.0)


def test_nothing_has_no_rate() -> None:
    assert Rate().per_second(5.0) == 0.0
