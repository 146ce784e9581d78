from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sampling_reference import acceptable_tokens, probabilities

from engine_core.token_choice import TokenChoice
from engine_core.uniforms import uniform
from protocol.sampling import SamplingParams

WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 64, "top_p": 0.9},
    {"top_k": 65, "temperature": 0.7},
    {"top_k": 256, "min_p": 0.01},
    {"top_k": 257, "top_p": 0.95},
    {"top_p": 0.8, "temperature": 1.3},
    {},
]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **fields)


def logits_of(rows: int, vocab_size: int, seed: int = 0) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab_size)).astype(np.float32)


def chosen(logits: Any, rows: list[SamplingParams], position: int = 0) -> list[int]:
    choice = TokenChoice(rows, may_wait=True)
    tokens = choice.choose(mx.array(logits), [position] * len(rows))
    assert tokens.dtype == mx.uint32
    return tokens.tolist()  # type: ignore[return-value]


@pytest.mark.parametrize("vocab_size", [3, 500, 32 * 300, 32 * 300 + 5])
def test_each_row_gets_its_token_whatever_ways_its_batch_mixes(vocab_size: int) -> None:
    logits = logits_of(len(WAYS) * 5, vocab_size)
    rows = [params(seed=seed, **fields) for seed in range(5) for fields in WAYS]
    together = chosen(logits, rows)
    for row, row_params, token in zip(logits, rows, together, strict=True):
        distribution = probabilities(row.astype(np.float64), row_params)
        assert token in acceptable_tokens(distribution, uniform(row_params.seed, 0), slack=2e-5)
    assert [chosen(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)] == together


def test_tokens_as_likely_as_the_last_of_top_k_can_come() -> None:
    logits = np.full((1, 40), -9.0, dtype=np.float32)
    logits[0, [3, 17, 30]] = [2, 1, 1]
    found = {chosen(logits, [params(top_k=2, seed=seed)])[0] for seed in range(60)}
    assert found == {3, 17, 30}


def test_what_is_behind_the_last_id_never_comes() -> None:
    logits = np.zeros((1, 33), dtype=np.float32)
    found = {chosen(logits, [params(top_k=40, seed=seed)])[0] for seed in range(200)}
    assert max(found) <= 32 and len(found) > 25
