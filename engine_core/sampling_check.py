"""What sampling parameters must be so that their request gets what it asked for, and the others do not notice it.

The sampler works on all rows of a batch at once and trusts what it is given: a bad word without tokens would end the
process, a list of a million words would hold up every step, and a NaN or an empty set of allowed tokens would draw
token 0 without a word. The limits are wider than those of the API server, which tells its callers about its own.
"""

import math
import sys
from collections.abc import Iterator

from protocol.logprobs import MAX_LOGPROBS
from protocol.sampling import SamplingParams

MAX_STOP_TOKEN_IDS = 1_024
"""Looked at in each step before `min_tokens`."""
MAX_LOGIT_BIASES = 4_096
MAX_BAD_WORDS = 256
"""The sampler lines all words of a batch up in one array, [words, tokens of the longest]: 20,000 of one token beside
one of 20,000 held up an engine core for more than 40 s."""
MAX_BAD_WORD_TOKENS = 1_024


MAX_FACTOR = 1e6
"""Of temperature, penalties and biases: with it float32 arithmetic on logits stays finite."""


def sampling_problems(sampling: SamplingParams, vocab_size: int) -> Iterator[str]:
    """What is wrong, each with the name of its field; nothing for parameters that can be followed."""
    yield from _too_many(sampling)
    yield from _out_of_range(sampling)
    yield from _unknown_tokens(sampling, vocab_size)
    yield from _impossible_bans(sampling, vocab_size)


def _out_of_range(sampling: SamplingParams) -> Iterator[str]:
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("max_tokens", sampling.max_tokens, 1, math.inf),
        ("min_tokens", sampling.min_tokens, 0, math.inf),
        ("seed", sampling.seed, 0, 2**64 - 1),
        ("temperature", sampling.temperature, 0, MAX_FACTOR),
        ("top_p", sampling.top_p, sys.float_info.min, 1),
        ("top_k", sampling.top_k, 0, math.inf),
        ("min_p", sampling.min_p, 0, 1),
        ("repetition_penalty", sampling.repetition_penalty, 1 / MAX_FACTOR, MAX_FACTOR),
        ("presence_penalty", sampling.presence_penalty, -MAX_FACTOR, MAX_FACTOR),
        ("frequency_penalty", sampling.frequency_penalty, -MAX_FACTOR, MAX_FACTOR),
        ("logprobs", sampling.logprobs or 0, 0, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs or 0, 0, MAX_LOGPROBS),
        *(
            (f"logit_bias of token {token}", bias, -MAX_FACTOR, MAX_FACTOR)
            for token, bias in sampling.logit_bias.items()
        ),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:  # so NaN, too
            yield f"{name} is {value}, not from {low} to {high}"


def _too_many(sampling: SamplingParams) -> Iterator[str]:
    counts = {
        "stop_token_ids": (len(sampling.stop_token_ids), MAX_STOP_TOKEN_IDS),
        "logit_bias": (len(sampling.logit_bias), MAX_LOGIT_BIASES),
        "bad_words_token_ids": (len(sampling.bad_words_token_ids), MAX_BAD_WORDS),
    }
    for name, (count, most) in counts.items():
        if count > most:
            yield f"{name} has {count} entries, at most {most} are allowed"


def _unknown_tokens(sampling: SamplingParams, vocab_size: int) -> Iterator[str]:
    for name, token_ids in (("stop_token_ids", sampling.stop_token_ids), ("logit_bias", sampling.logit_bias)):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                yield f"{name}: token id {token_id} is not below the vocabulary size {vocab_size}"


def _impossible_bans(sampling: SamplingParams, vocab_size: int) -> Iterator[str]:
    allowed = sampling.allowed_token_ids
    if allowed is not None:
        if len(allowed) > vocab_size:
            yield f"allowed_token_ids has {len(allowed)} entries, more than the vocabulary"
        elif not any(0 <= token_id < vocab_size for token_id in allowed):
            yield f"allowed_token_ids has no token id below the vocabulary size {vocab_size}"
    for word in sampling.bad_words_token_ids:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            yield f"bad_words_token_ids has a word of {len(word)} tokens, not of 1 to {MAX_BAD_WORD_TOKENS}"
