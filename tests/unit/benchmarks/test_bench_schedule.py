import itertools
import statistics

import pytest

from benchmarks.schedule import OpenLoop, arrival_times_s


def first_times(arrivals: str, rate_per_s: float, count: int, seed: int = 0) -> list[float]:
    pattern = OpenLoop(rate_per_s, "constant" if arrivals == "constant" else "poisson", 10)
    return list(itertools.islice(arrival_times_s(pattern, seed), count))


def test_constant_arrivals_are_evenly_spaced_from_zero() -> None:
    assert first_times("constant", 4.0, 4) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    times_s = first_times("poisson", 10.0, 5001)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert times_s[0] == 0.0
    assert statistics.fmean(gaps_s) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps_s) == pytest.approx(0.1, rel=0.1)


def test_the_seed_fixes_poisson_arrivals() -> None:
    assert first_times("poisson", 10.0, 20, seed=1) == first_times("poisson", 10.0, 20, seed=1)
    assert first_times("poisson", 10.0, 20, seed=1) != first_times("poisson", 10.0, 20, seed=2)
