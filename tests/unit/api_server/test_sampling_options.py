"""Sampling options: ranges, defaults of the model, and exact limits of the context."""

from typing import Any

import msgspec
import pytest
from http_fakes import CONTEXT, make_card

from api_server.completion_schema import CompletionRequest
from api_server.errors import ApiError, ErrorKind
from api_server.sampling_options import Prompt, sampling_params
from protocol.card import GenerationDefaults, ModelCard
from protocol.sampling import SamplingParams

CARD = make_card()


def options(**fields: Any) -> CompletionRequest:
    request = msgspec.convert({"prompt": "x", **fields}, CompletionRequest)
    request.check()
    return request


def params(
    prompt_tokens: int = 10, card: ModelCard = CARD, default: int | None = None, **fields: Any
) -> SamplingParams:
    return sampling_params(options(**fields), card, Prompt([0] * prompt_tokens, default), 0)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        params(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1e-9, 2], [-0.1, 2.1]),
        ("top_p", [1e-4, 1], [0, 1.01, -1]),
        ("top_k", [-1, 0, 1, 10**9], [-2, 2**40]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("repetition_penalty", [0.01, 1, 2], [0, -1, 101]),
        ("presence_penalty", [-2, 2], [-2.1, 10]),
        ("frequency_penalty", [-2, 2], [-2.1, 10]),
        ("n", [1, 128], [0, -1, 129, 10**30]),
        ("min_tokens", [0, 16], [-1]),
        ("max_tokens", [1, 190], [0, -5]),
        ("seed", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1, 2**64, 10**300]),
        ("priority", [-5, 5], [2**31]),
    ],
)
def test_ranges(name: str, good: list[float], bad: list[float]) -> None:
    # BR-b05, BR-b09, BR-g07
    for value in good:
        params(**{"max_tokens": 20, name: value})
    for value in bad:
        error = refusal(**{name: value})
        assert (error.kind, error.param) == (ErrorKind.INVALID, name)


def test_range_errors_write_integers_as_integers() -> None:
    assert "at least 1 and at most 2147483647" in refusal(max_tokens=0).message
    assert "at least 0.01 and at most 100" in refusal(repetition_penalty=0).message


@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty"])
def test_not_a_number_is_out_of_range(name: str) -> None:
    assert refusal(**{name: float("nan")}).param == name


@pytest.mark.parametrize(("temperature", "sampled"), [(5e-324, 0.0), (1e-9, 0.0), (1e-4, 1e-4), (0.7, 0.7)])
def test_tiny_temperatures_are_greedy(temperature: float, sampled: float) -> None:
    # BR-g07
    assert params(temperature=temperature).temperature == sampled


def test_the_models_defaults_apply_where_the_request_says_nothing() -> None:
    card = make_card(defaults=GenerationDefaults(temperature=0.2, top_p=0.9, top_k=7, repetition_penalty=1.1))
    assert params(card=card) == params(temperature=0.2, top_p=0.9, top_k=7, repetition_penalty=1.1)
    assert params(card=card, temperature=0, top_p=1, top_k=0).temperature == 0


@pytest.mark.parametrize(("asked", "top_k"), [(-1, 0), (0, 0), (5, 5), (10**9, CARD.vocab_size)])
def test_top_k_is_off_or_at_most_the_vocabulary(asked: int, top_k: int) -> None:
    assert params(top_k=asked).top_k == top_k


def test_a_negative_seed_becomes_its_unsigned_twin() -> None:
    assert sampling_params(options(), CARD, Prompt([0], None), -1).seed == 2**64 - 1


def test_without_a_limit_the_rest_of_the_context_is_used() -> None:
    assert params(prompt_tokens=10).max_tokens == CONTEXT - 10
    assert params(prompt_tokens=CONTEXT - 1).max_tokens == 1


def test_a_default_limit_is_cut_to_the_context_and_an_asked_one_is_not() -> None:
    assert params(prompt_tokens=CONTEXT - 3, default=16).max_tokens == 3
    assert params(prompt_tokens=CONTEXT - 3, max_tokens=3).max_tokens == 3
    error = refusal(prompt_tokens=CONTEXT - 3, max_tokens=4)
    assert error.kind is ErrorKind.CONTEXT_LENGTH


@pytest.mark.parametrize("prompt_tokens", [CONTEXT, CONTEXT + 1])
def test_context_errors_tell_the_true_numbers(prompt_tokens: int) -> None:
    # BR-b16
    error = refusal(prompt_tokens=prompt_tokens, max_tokens=5)
    assert error.kind is ErrorKind.CONTEXT_LENGTH
    for number in (CONTEXT, prompt_tokens, 5):
        assert f"{number} tokens" in error.message


def test_min_tokens_above_max_tokens_is_refused() -> None:
    # BR-g09
    assert refusal(min_tokens=6, max_tokens=5).param == "min_tokens"


@pytest.mark.parametrize("token_id", [-1, CARD.vocab_size, 10**30])
def test_stop_token_ids_must_be_in_the_vocabulary(token_id: int) -> None:
    # BR-b06
    assert refusal(stop_token_ids=[3, token_id]).param == "stop_token_ids[1]"


@pytest.mark.parametrize(
    "key", [str(CARD.vocab_size), "-1", "4294967296", "hello", "01", "1.5", "", "9" * 5000, "²", " 1"]
)
def test_logit_bias_keys_must_be_token_ids(key: str) -> None:
    # BR-b01, BR-b03, BR-b04
    error = refusal(logit_bias={key: 5})
    assert error.param == "logit_bias"
    assert len(error.message) < 200


def test_logit_bias_values_are_bounded() -> None:
    assert refusal(logit_bias={"1": 100.5}).param == "logit_bias"
    assert params(logit_bias={"1": -100, "2": 1.5}).logit_bias == {1: -100.0, 2: 1.5}


@pytest.mark.parametrize(
    ("stop", "param"),
    [("", "stop"), (["a", ""], "stop[1]"), (["a"] * 17, "stop"), ("x" * 1025, "stop"), ([" ", "x" * 1025], "stop[1]")],
)
def test_stop_strings_are_bounded_and_not_empty(stop: Any, param: str) -> None:
    assert refusal(stop=stop).param == param


def test_stream_options_need_a_stream() -> None:
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert options(stream=True, stream_options={"include_usage": True}).wants_usage
    assert not options(stream=True, stream_options={}).wants_usage
    assert options(stream=True, stream_options={"continuous_usage_stats": True}).wants_continuous_usage


@pytest.mark.parametrize(
    ("allowed", "param"),
    [
        ([], "allowed_token_ids"),
        ([1] * 1025, "allowed_token_ids"),
        ([1, CARD.vocab_size], "allowed_token_ids[1]"),
        ([-1], "allowed_token_ids[0]"),
    ],
)
def test_allowed_tokens_are_some_of_the_vocabulary(allowed: list[int], param: str) -> None:
    assert refusal(allowed_token_ids=allowed).param == param
    assert params(allowed_token_ids=[5, 6]).allowed_token_ids == (5, 6)
    assert params().allowed_token_ids is None


@pytest.mark.parametrize(
    ("words", "param"), [([""], "bad_words[0]"), (["a", "  "], "bad_words[1]"), (["a"] * 129, "bad_words")]
)
def test_bad_words_are_bounded_and_not_empty(words: list[str], param: str) -> None:
    assert refusal(bad_words=words).param == param


@pytest.mark.parametrize(("given", "kept"), [(None, [1, 2, 3, 4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4]), (-1, [3, 4])])
def test_the_end_of_a_truncated_prompt_is_kept(given: int | None, kept: list[int]) -> None:
    assert options(truncate_prompt_tokens=given, max_tokens=8).truncated([1, 2, 3, 4], 10) == kept


@pytest.mark.parametrize("given", [0, -2, 2**31])
def test_prompts_are_truncated_to_something(given: int) -> None:
    assert refusal(truncate_prompt_tokens=given).param == "truncate_prompt_tokens"
