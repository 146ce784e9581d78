"""The bucket of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.token_bucket import TokenBucket


def test_a_minute_of_tokens_at_once_then_as_they_come() -> None:
    bucket = TokenBucket(600, 0.0)
    assert bucket.missing_for_s(600, 0.0) == 0
    bucket.take(600, 0.0)
    assert bucket.remaining(0.0) == 0
    assert bucket.missing_for_s(50, 0.0) == pytest.approx(5.0)
    assert bucket.missing_for_s(50, 5.0) == 0
    assert bucket.full_in_s(5.0) == pytest.approx(55.0)


def test_more_than_it_can_hold_is_let_in_when_it_is_full_and_paid_later() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.take(1, 0.0)
    assert bucket.missing_for_s(600, 0.0) == pytest.approx(1.0)
    assert bucket.missing_for_s(600, 1.0) == 0
    bucket.take(600, 1.0)
    assert bucket.missing_for_s(1, 1.0) == pytest.approx(541.0)


def test_what_comes_back_counts_at_once_but_never_fills_it_above_the_rim() -> None:
    bucket = TokenBucket(100, 0.0)
    bucket.take(100, 0.0)
    bucket.give_back(70, 0.0)
    assert bucket.remaining(0.0) == 70
    bucket.give_back(70, 30.0)
    assert bucket.remaining(30.0) == 100
    bucket.check_invariants()


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400), st.floats(0, 1)), max_size=60))
def test_no_more_is_used_than_the_rate_allows(steps: list[tuple[float, int, float]]) -> None:
    """Whoever takes only what is there uses at most a full bucket and what the rate brings."""
    bucket, now_s, used = TokenBucket(600, 0.0), 0.0, 0.0
    for wait_s, wanted, share in steps:
        now_s += wait_s
        if bucket.missing_for_s(wanted, now_s) == 0:
            bucket.take(wanted, now_s)
            unused = int(wanted * share)
            bucket.give_back(unused, now_s)
            used += wanted - unused
        bucket.check_invariants()
        assert used <= 600 + now_s * 10 + 1e-6
