import mlx.core as mx
import numpy as np
import pytest

from engine_core.weighted_draw import draw, weights_of


def drawn(weights: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", *uniforms: float) -> list[int]:
    tokens: list[int] = draw(mx.array(weights), mx.array(uniforms)[:, None]).tolist()  # type: ignore[assignment]
    return tokens


@pytest.mark.parametrize("vocab_size", [1, 7, 128, 129, 5000])
def test_the_draw_is_the_inverse_of_the_distribution_function(vocab_size: int) -> None:
    weights = np.random.default_rng(1).random((1, vocab_size)).astype(np.float32) ** 8
    ends = np.cumsum(weights[0].astype(np.float64))
    for number in np.linspace(0, 0.999, 23):
        token = drawn(weights, float(number))[0]
        below = ends[token - 1] if token else 0.0
        assert below - 1e-5 <= number * ends[-1] <= ends[token] + 1e-5


def test_nothing_without_weight_is_drawn_not_even_at_the_ends() -> None:
    weights = np.zeros((3, 1000), dtype=np.float32)
    weights[:, [300, 700]] = 0.1
    assert drawn(weights, 0.0, 0.5 - 2**-10, 1 - 2**-23) == [300, 300, 700]


def test_rounding_at_the_end_gives_the_last_token_with_weight() -> None:
    weights = np.full((1, 4000), 0.1, dtype=np.float32)
    weights[0, 3000:] = 0
    assert drawn(weights, 1.0) == [2999]


def test_weights_are_relative_to_the_likeliest() -> None:
    logits = np.array([[1000.0, 999.0, -np.inf], [-5.0, -5.0, -7.0]], dtype=np.float32)
    temperatures = np.array([[0.5], [2.0]])
    found = np.array(weights_of(mx.array(logits), mx.array(temperatures, mx.float32)))
    expected = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperatures)
    assert found == pytest.approx(expected, rel=1e-6)
    assert found.max(axis=1).tolist() == [1, 1]
