import numpy as np

from engine_core.uniforms import splitmix64, uniform


def test_splitmix64_gives_the_published_sequence() -> None:
    """First outputs from state 1234567, which the reference implementation in C gives."""
    golden_gamma = 0x9E3779B97F4A7C15
    outputs = [splitmix64((1234567 + i * golden_gamma) % 2**64) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, position) for seed in range(50) for position in range(50)}) > 2490


def test_numbers_are_spread_evenly_along_seeds_and_along_positions() -> None:
    for numbers in ([uniform(5, i) for i in range(20_000)], [uniform(i, 5) for i in range(20_000)]):
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        chi_square = float(((counts - 1000) ** 2 / 1000).sum())
        assert chi_square < 45, "19 degrees of freedom: 1 in 1,000 exceeds 43.8"


def test_numbers_stay_below_the_total_after_rounding_to_float32() -> None:
    largest = np.float32(1 - 2**-23)
    assert all(float(np.float32(uniform(seed, 0))) == uniform(seed, 0) < 1 for seed in range(1000))
    assert all(largest * total < total for total in np.float32(np.random.default_rng(1).uniform(1, 9e4, 100_000)))
