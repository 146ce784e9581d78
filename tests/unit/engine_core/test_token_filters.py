from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sampling_reference import probabilities

from engine_core.token_filters import RowFilters
from protocol.sampling import SamplingParams


def weights_of(rows: int, vocab_size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, vocab_size))
    return np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float32)


def kept(
    weights: np.ndarray[Any, np.dtype[np.float32]], *rows: SamplingParams, may_wait: bool = True
) -> list[set[int]]:
    filtered = np.array(RowFilters(rows).apply(mx.array(weights), may_wait))
    assert ((filtered == 0) | (filtered == weights)).all()
    return [set(np.flatnonzero(row).tolist()) for row in filtered]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **fields)


FILTERS = [
    {},
    {"min_p": 0.1},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 64},
    {"top_k": 65},
    {"top_k": 10**6},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_k": 40, "top_p": 0.7},
    {"top_k": 200, "top_p": 0.9},
    {"top_k": 257},
    {"top_k": 3000, "top_p": 0.9, "min_p": 1e-4},
    {"top_p": 0.999},
    {"top_p": 0.9, "min_p": 0.01},
    {"top_k": 5, "top_p": 0.99, "min_p": 0.2},
]


@pytest.mark.parametrize("vocab_size", [5, 100, 1000, 128 * 70, 128 * 70 + 1, 20_000])
@pytest.mark.parametrize("fields", FILTERS, ids=str)
@pytest.mark.parametrize("may_wait", [True, False])
def test_keeps_what_the_reference_keeps(may_wait: bool, fields: dict[str, Any], vocab_size: int) -> None:
    weights = weights_of(3, vocab_size)
    found = kept(weights, *[params(**fields)] * 3, may_wait=may_wait)
    for row, tokens in zip(weights, found, strict=True):
        logits = np.log(row.astype(np.float64))
        differing = tokens ^ set(np.flatnonzero(probabilities(logits, params(**fields))).tolist())
        if fields.get("top_p", 1) == 1:
            assert not differing
        without = probabilities(logits, params(**{**fields, "top_p": 1.0}))
        for token in differing:  # float32 rounds the long sum before the last token of a nucleus
            before = without[without > without[token]].sum()
            assert before == pytest.approx(fields["top_p"], abs=1e-5)


@pytest.mark.parametrize("may_wait", [True, False])
def test_rows_with_different_filters_do_not_touch_one_another(may_wait: bool) -> None:
    weights = weights_of(len(FILTERS), 9000, seed=4)
    together = kept(weights, *[params(**fields) for fields in FILTERS], may_wait=may_wait)
    alone = [kept(weights[i : i + 1], params(**fields), may_wait=may_wait)[0] for i, fields in enumerate(FILTERS)]
    assert together == alone


def test_the_largest_weights_may_sit_in_one_block() -> None:
    weights = np.full((1, 128 * 100), 1e-3, dtype=np.float32)
    weights[0, 256:320] = np.linspace(0.5, 1, 64)
    assert kept(weights, params(top_k=64)) == [set(range(256, 320))]


def test_tokens_of_equal_weight_stay_together() -> None:
    weights = np.array([[1, 0.5, 0.5, 0.5, 0.1]], dtype=np.float32)
    assert kept(weights, params(top_k=2)) == [{0, 1, 2, 3}]
    assert kept(weights, params(top_p=0.5)) == [{0, 1, 2, 3}]


@pytest.mark.parametrize("may_wait", [True, False])
def test_many_tokens_of_equal_weight_stay_together(may_wait: bool) -> None:
    weights = np.full((1, 9000), 0.5, dtype=np.float32)
    weights[0, [7, 8000]] = 1
    assert kept(weights, params(top_p=0.3), may_wait=may_wait) == [set(range(9000))]
    assert kept(weights, params(top_p=0.0004), may_wait=may_wait) == [{7, 8000}]
    assert kept(weights, params(top_k=300), may_wait=may_wait) == [set(range(9000))]


def test_no_filter_keeps_all() -> None:
    weights = weights_of(2, 50)
    assert kept(weights, params(), params()) == [set(range(50))] * 2


@pytest.mark.parametrize("fields", [{}, {"top_k": 40}, {"top_k": 400}], ids=["alone", "head", "wide"])
@pytest.mark.parametrize("may_wait", [True, False])
def test_the_likeliest_token_stays_however_small_top_p_is(may_wait: bool, fields: dict[str, Any]) -> None:
    weights = weights_of(1, 500)
    assert kept(weights, params(top_p=5e-324, **fields), may_wait=may_wait) == [{int(weights[0].argmax())}]


@pytest.mark.parametrize("fields", [fields for fields in FILTERS if 0 < fields.get("top_k", 0) <= 64], ids=str)
def test_the_likeliest_tokens_are_enough_for_a_small_top_k(fields: dict[str, Any]) -> None:
    weights = weights_of(3, 20_000)
    without_the_rest = np.where(weights >= np.sort(weights, axis=1)[:, -64:-63], weights, np.float32(0))
    found = np.array(RowFilters([params(**fields)] * 3).apply_to_head(mx.array(without_the_rest), 64))
    assert [set(np.flatnonzero(row).tolist()) for row in found] == kept(weights, *[params(**fields)] * 3)
