"""Likelihoods as evaluation harnesses ask for them (lm-eval's local-completions) equal mlx-lm's own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx_lm import load
from openai import OpenAI

from deploy.cache import cache_directory
from deploy.demo_model import Weights, ensure_demo_model

pytestmark = [pytest.mark.cluster, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
CASES = [
    ("The capital of France is", [" Paris", " London", " a large city in the north of the country"]),
    ("Question: Which animal barks?\nAnswer:", [" The dog", " The fish", " \N{FLEXED BICEPS}\N{FLEXED BICEPS}"]),
    ("The quick brown fox jumps over the lazy dog. " * 12 + "The quick brown", [" fox", " fox jumps over", " cat"]),
]


class Likelihood(NamedTuple):
    """Of a continuation behind its context."""

    logprob: float
    is_greedy: bool


@pytest.fixture(scope="module")
def mlx_lm_model() -> tuple[Any, Any]:
    loaded: Any = load(str(ensure_demo_model(cache_directory(), Weights.FLOAT32)))
    loaded[0].set_dtype(mx.float32)
    return loaded[0], loaded[1]


def by_mlx_lm(model: Any, context: Sequence[int], continuation: Sequence[int]) -> Likelihood:
    tokens = mx.array([*context, *continuation])
    logits = model(tokens[None, :-1])[0].astype(mx.float32)[len(context) - 1 :]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    targets = mx.array(list(continuation))
    total = mx.take_along_axis(logprobs, targets[:, None], axis=1).sum().item()
    return Likelihood(float(total), mx.argmax(logits, axis=-1).tolist() == list(continuation))


def of_choice(logprobs: Any, context_tokens: int) -> Likelihood:
    """As lm-eval reads it: the last token is the one that had to be generated."""
    own = logprobs.token_logprobs[context_tokens:-1]
    tops = logprobs.top_logprobs[context_tokens:-1]
    return Likelihood(sum(own), all(value == max(top.values()) for value, top in zip(own, tops, strict=True)))


def test_they_equal_those_of_mlx_lm(client: OpenAI, mlx_lm_model: tuple[Any, Any]) -> None:
    model, tokenizer = mlx_lm_model
    pairs = [(tokenizer.encode(context), tokenizer.encode(text)) for context, texts in CASES for text in texts]
    asked = {"model": MODEL, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
    # Two forwards of other shapes differ by up to 2e-4 in float32, which is more than 1e-4 of a likelihood near 1.
    for _ in range(2):  # the second time all prefixes would be stored
        prompts = [[*context, *continuation] for context, continuation in pairs]
        answer = client.completions.create(prompt=prompts, **asked)  # type: ignore[call-overload]
        for choice, (context, continuation) in zip(answer.choices, pairs, strict=True):
            assert len(choice.logprobs.tokens) == len(context) + len(continuation) + 1
            found, expected = of_choice(choice.logprobs, len(context)), by_mlx_lm(model, context, continuation)
            assert found.logprob == pytest.approx(expected.logprob, rel=1e-4, abs=5e-4)
            assert found.is_greedy == expected.is_greedy
