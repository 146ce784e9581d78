"""Completion bodies: the four forms of a prompt, and what is refused."""

from typing import Any

import msgspec
import pytest

from api_server.completion_schema import MAX_PROMPTS, parse_completion, split_prompts
from api_server.errors import ApiError, ErrorKind

VOCAB = 340


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 339]], [[1], [2, 339]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, expected: list[Any]) -> None:
    assert split_prompts(prompt, VOCAB) == expected


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([-1], "prompt[0]"),
        ([VOCAB], "prompt[0]"),
        ([1, 1.5], "prompt[1]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([[1, 2], [-3]], "prompt[1][0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([10**30], "prompt[0]"),
        ([None], "prompt[0]"),
        ([], "prompt"),
        (["a"] * (MAX_PROMPTS + 1), "prompt"),
    ],
)
def test_bad_prompts_are_named_by_their_path(prompt: Any, param: str) -> None:
    # BR-b25
    with pytest.raises(ApiError) as caught:
        split_prompts(prompt, VOCAB)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID, param)


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("best_of", 2), ("use_beam_search", True)])
def test_what_this_version_does_not_do_is_refused(name: str, value: Any) -> None:
    fields = {"prompt": msgspec.Raw(b'"x"'), name: msgspec.Raw(msgspec.json.encode(value))}
    with pytest.raises(ApiError) as caught:
        parse_completion(fields)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.NOT_SUPPORTED, name)


@pytest.mark.parametrize("value", [100_000, 21, -1, True])
def test_numbers_of_alternatives_are_bounded(value: Any) -> None:
    # BR-b07
    fields = {"prompt": msgspec.Raw(b'"x"'), "logprobs": msgspec.Raw(msgspec.json.encode(value))}
    with pytest.raises(ApiError) as caught:
        parse_completion(fields)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID, "logprobs")


def test_a_prompt_is_required() -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion({})
    assert caught.value.param == "prompt"
