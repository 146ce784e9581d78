"""Finishing rates and the time to come back."""

import pytest

from coordinator import admission
from coordinator.admission import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, RATE_WINDOW_S, Admission, FinishRate


def test_the_rate_is_taken_over_the_window_and_forgets() -> None:
    rate = FinishRate()
    for step in range(40):
        rate.record(100.0 + step / 4)
    assert rate.per_second(110.0) == pytest.approx(3.6)
    assert rate.per_second(110.0 + RATE_WINDOW_S) == 0.0


def test_a_refused_request_waits_for_a_tenth_of_those_in_flight() -> None:
    owner = Admission(max_requests=100)
    owner.served("m")
    for step in range(20):
        owner.finished("m", 100.0 + step / 2)
    assert owner.view("m", 100, 109.9).retry_after_s == pytest.approx(10 / 2.0)


def test_the_time_to_come_back_has_limits() -> None:
    owner = Admission(max_requests=100)
    owner.served("m")
    assert owner.view("m", 100, 100.0).retry_after_s == MAX_RETRY_AFTER_S
    for _ in range(100_000):
        owner.finished("m", 100.0)
    assert owner.view("m", 100, 100.0).retry_after_s == MIN_RETRY_AFTER_S


def test_only_served_models_are_known() -> None:
    owner = Admission(max_requests=1)
    owner.finished("never", 1.0)
    assert not owner.view("never", 0, 1.0).served
    owner.served("m")
    assert owner.view("m", 0, 1.0).served


def test_serving_again_keeps_the_rate() -> None:
    owner = Admission(max_requests=1000)
    owner.served("m")
    for _ in range(100):
        owner.finished("m", 100.0)
    owner.served("m")
    assert owner.view("m", 0, 101.0).retry_after_s == pytest.approx(10.0)


def test_the_number_of_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_MODELS", 2)
    owner = Admission(max_requests=1)
    for model in ("a", "b", "a", "c"):
        owner.served(model)
        owner.check_invariants()
    assert [owner.view(model, 0, 1.0).served for model in ("a", "b", "c")] == [True, False, True]
