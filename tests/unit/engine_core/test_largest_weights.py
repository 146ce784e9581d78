import mlx.core as mx
import numpy as np
import pytest

from engine_core.largest_weights import candidates, largest, lowest_of, lowest_to_reach, row_maxima, row_sums


def weights_of(rows: int, vocab_size: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    weights = np.random.default_rng(2).random((rows, vocab_size)).astype(np.float32) ** 12
    return weights / weights.max(axis=1, keepdims=True)


@pytest.mark.parametrize("vocab_size", [3, 64, 100, 32 * 65, 32 * 65 + 1, 30_000])
def test_the_largest_are_found(vocab_size: int) -> None:
    weights = weights_of(3, vocab_size)
    found = np.array(largest(mx.array(weights), 64))
    assert (found == np.sort(weights, axis=1)[:, ::-1][:, :64]).all()


def test_the_largest_may_sit_side_by_side_or_in_one_block() -> None:
    for places in (slice(256, 320), slice(7, 7 + 64 * 250, 250)):
        weights = np.full((1, 32 * 500), 1e-3, dtype=np.float32)
        weights[0, places] = np.linspace(0.5, 1, 64)
        assert np.array(largest(mx.array(weights), 64))[0].min() >= 0.5


@pytest.mark.parametrize("vocab_size", [3, 100, 32 * 65 + 1])
def test_candidates_come_with_their_ids_in_order(vocab_size: int) -> None:
    weights = weights_of(2, vocab_size)
    found = candidates(mx.array(weights), 10, -1.0)
    places = np.repeat(np.arange(found.values.shape[1])[None], 2, axis=0)
    ids, values = np.array(found.ids(mx.array(places))), np.array(found.values)
    assert (np.diff(ids) > 0).all()
    real = ids < vocab_size
    for row in range(2):
        assert (values[row][real[row]] == weights[row][ids[row][real[row]]]).all()
        assert set(np.argsort(-weights[row])[:10]) <= set(ids[row][real[row]])
    assert (values[~real] == -1).all()


def test_bounds_are_exact_to_the_last_bit() -> None:
    weights = weights_of(4, 3000)
    counts = [1, 2, 1500, 3000]
    found = np.array(lowest_of(mx.array(weights), mx.array(counts)[:, None]))[:, 0]
    assert found.tolist() == [float(np.sort(row)[-count]) for row, count in zip(weights, counts, strict=True)]


def test_the_sum_from_the_bound_up_is_reached_and_from_the_next_weight_up_it_is_not() -> None:
    weights = weights_of(4, 3000)
    sums = weights.sum(axis=1, keepdims=True) * np.array([[0.1], [0.5], [0.9], [0.99]])
    found = np.array(lowest_to_reach(mx.array(weights), mx.array(sums.astype(np.float32))))
    for row, bound, wanted in zip(weights.astype(np.float64), found[:, 0], sums[:, 0], strict=True):
        assert bound in row
        assert row[row > bound].sum() < wanted <= row[row >= bound].sum()


@pytest.mark.parametrize("width", [1, 7, 1024, 3072, 5000])
def test_sums_and_maxima_of_any_width(width: int) -> None:
    weights = weights_of(3, width)
    assert np.array(row_sums(mx.array(weights))) == pytest.approx(weights.sum(axis=1, keepdims=True), rel=1e-6)
    assert (np.array(row_maxima(mx.array(weights))) == weights.max(axis=1, keepdims=True)).all()
