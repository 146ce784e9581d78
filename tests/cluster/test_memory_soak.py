"""A short form of `make soak`, and what the soak would object to."""

from collections import Counter

import pytest
from memory_soak import ALLOWANCE_BYTES, KV_CACHE_BYTES, SERVE_ARGUMENTS, SoakResult, soak
from shoal_process import running_shoal

pytestmark = [pytest.mark.cluster, pytest.mark.model]

START = 600 * 2**20
MOST = START + KV_CACHE_BYTES + ALLOWANCE_BYTES


@pytest.mark.timeout(900)  # a machine that others use as well takes minutes
def test_memory_is_bounded_and_given_back_and_every_request_is_answered() -> None:
    with running_shoal(*SERVE_ARGUMENTS) as shoal:
        result = soak(shoal, 10, clients=10)
    print(result)
    result.check()


def seen(peak: int = MOST, after: int = START, faults: tuple[str, ...] = ()) -> SoakResult:
    return SoakResult(START, START, peak, after, Counter(whole=1), list(faults))


def test_what_is_within_the_bounds_passes() -> None:
    seen().check()


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (seen(peak=MOST + 1), "took more than"),
        (seen(after=START * 9 // 8), "kept what it took"),
        (seen(faults=("no end",)), "1 requests got no proper answer"),
    ],
)
def test_what_is_not_fails(result: SoakResult, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        result.check()
