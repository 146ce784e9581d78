import mlx.core as mx
import numpy as np
import pytest

from engine_core.logprob_rows import LogprobRows
from protocol.logprobs import LOGPROB_FLOOR


def logits_of(rows: int, vocab_size: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    return np.random.default_rng(7).normal(0, 4, (rows, vocab_size)).astype(np.float32)


@pytest.mark.parametrize("vocab_size", [3, 20, 640, 5001, 32 * 300])
def test_the_figures_are_those_of_the_reference(vocab_size: int) -> None:
    logits = logits_of(4, vocab_size)
    tokens = [int(np.argsort(-row)[place]) for row, place in zip(logits, (0, 2, 1, 2), strict=True)]
    found = LogprobRows([1, 3], [5, 0]).of(mx.array(logits), mx.array(tokens, mx.uint32)).by_place()
    assert found.keys() == {1, 3}
    for place, tops in ((1, min(5, vocab_size)), (3, 0)):
        exact = logits[place].astype(np.float64)
        exact -= np.log(np.exp(exact - exact.max()).sum()) + exact.max()
        token = found[place]
        assert token.rank == 3
        assert token.logprob == pytest.approx(exact[tokens[place]], abs=1e-5)
        assert list(token.top_ids) == np.argsort(-exact)[:tops].tolist()
        assert list(token.top_logprobs) == pytest.approx(np.sort(exact)[::-1][:tops].tolist(), abs=1e-5)


def test_a_row_gets_the_same_figures_alone_and_in_any_batch() -> None:
    logits = mx.array(logits_of(6, 3000))
    tokens = mx.arange(6, dtype=mx.uint32)
    together = LogprobRows([0, 2, 5], [20, 1, 3]).of(logits, tokens).by_place()
    alone = LogprobRows([0], [3]).of(logits[5:], tokens[5:]).by_place()
    assert alone[0] == together[5]


def test_minus_infinity_becomes_the_floor() -> None:
    logits = mx.array([[0.0, -mx.inf, -mx.inf]])
    found = LogprobRows([0], [3]).of(logits, mx.array([1], mx.uint32)).by_place()[0]
    assert (found.logprob, found.rank) == (LOGPROB_FLOOR, 2)
    assert found.top_logprobs == [0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = mx.array(logits_of(1, 4000)).astype(mx.bfloat16)
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)[0]
    found = LogprobRows([0], [0]).of(logits, mx.array([9], mx.uint32)).by_place()[0]
    assert found.logprob == pytest.approx(exact[9] - np.log(np.exp(exact).sum()), abs=1e-5)
