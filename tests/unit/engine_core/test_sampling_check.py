"""Which sampling parameters the engine core follows, and which it refuses."""

import math

import pytest

from engine_core.sampling_check import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIASES,
    MAX_STOP_TOKEN_IDS,
    sampling_problems,
)
from protocol.sampling import SamplingParams

VOCABULARY = 10_000


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1),
        SamplingParams(2**31, seed=2**64 - 1, temperature=2.0, top_p=1e-9, top_k=2**31 - 1, min_p=1.0, min_tokens=9),
        SamplingParams(1, repetition_penalty=0.01, presence_penalty=-2.0, frequency_penalty=2.0, logprobs=20),
        SamplingParams(1, logit_bias=dict.fromkeys(range(1_024), -100.0), stop_token_ids=tuple(range(128))),
        SamplingParams(1, allowed_token_ids=(10**12, 5)),
        SamplingParams(1, bad_words_token_ids=((1,), (-5, 10**12), (7,) * MAX_BAD_WORD_TOKENS)),
        SamplingParams(1, bad_words_token_ids=((1,),) * MAX_BAD_WORDS),
    ],
)
def test_what_an_api_server_lets_through_passes(sampling: SamplingParams) -> None:
    assert list(sampling_problems(sampling, VOCABULARY)) == []


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (SamplingParams(0), "max_tokens"),
        (SamplingParams(1, seed=2**64), "seed"),
        (SamplingParams(1, temperature=math.nan), "temperature"),
        (SamplingParams(1, temperature=math.inf), "temperature"),
        (SamplingParams(1, temperature=-1.0), "temperature"),
        (SamplingParams(1, top_p=0.0), "top_p"),
        (SamplingParams(1, top_p=math.nan), "top_p"),
        (SamplingParams(1, top_k=-1), "top_k"),
        (SamplingParams(1, min_p=1.1), "min_p"),
        (SamplingParams(1, repetition_penalty=0.0), "repetition_penalty"),
        (SamplingParams(1, presence_penalty=math.inf), "presence_penalty"),
        (SamplingParams(1, frequency_penalty=-1e300), "frequency_penalty"),
        (SamplingParams(1, min_tokens=-1), "min_tokens"),
        (SamplingParams(1, logprobs=-1), "logprobs"),
        (SamplingParams(1, logprobs=21), "logprobs"),
        (SamplingParams(1, prompt_logprobs=21), "prompt_logprobs"),
        (SamplingParams(1, logit_bias={3: math.nan}), "logit_bias of token 3"),
        (SamplingParams(1, logit_bias={VOCABULARY: 1.0}), "logit_bias: token id 10000"),
        (SamplingParams(1, logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0)), "logit_bias has 4097"),
        (SamplingParams(1, stop_token_ids=(-1,)), "stop_token_ids: token id -1"),
        (SamplingParams(1, stop_token_ids=(7,) * (MAX_STOP_TOKEN_IDS + 1)), "stop_token_ids has 1025"),
        (SamplingParams(1, allowed_token_ids=()), "allowed_token_ids"),
        (SamplingParams(1, allowed_token_ids=(VOCABULARY, -1)), "allowed_token_ids"),
        (SamplingParams(1, allowed_token_ids=(5,) * (VOCABULARY + 1)), "allowed_token_ids has 10001"),
        (SamplingParams(1, bad_words_token_ids=((1,), ())), "bad_words_token_ids has a word of 0"),
        (SamplingParams(1, bad_words_token_ids=((1,) * (MAX_BAD_WORD_TOKENS + 1),)), "bad_words_token_ids has a word"),
        (SamplingParams(1, bad_words_token_ids=((1,),) * (MAX_BAD_WORDS + 1)), "bad_words_token_ids has 257"),
    ],
)
def test_what_the_sampler_could_not_follow_is_named(sampling: SamplingParams, words: str) -> None:
    found = list(sampling_problems(sampling, VOCABULARY))
    assert found, "nothing was found"
    assert words in found[0]
