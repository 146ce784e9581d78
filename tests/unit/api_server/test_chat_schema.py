"""Chat bodies: messages to what templates get, and errors that name the place."""

from typing import Any

import msgspec
import pytest

from api_server.chat_schema import parse_chat, template_messages
from api_server.errors import ApiError, ErrorKind
from api_server.json_body import Fields
from api_server.output_grammar import output_grammar
from api_server.template_style import TemplateStyle
from api_server.unsupported import CHAT_SWITCHES


def fields(**values: Any) -> Fields:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def messages(*given: Any, **style: Any) -> list[dict[str, Any]]:
    return template_messages(parse_chat(fields(messages=list(given))).messages, TemplateStyle(**style))


def refusal(**values: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        template_messages(
            parse_chat(fields(**{"messages": [{"role": "user", "content": "x"}], **values})).messages, TemplateStyle()
        )
    return caught.value


def test_text_parts_are_joined_in_order() -> None:
    # BR-b22
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("system", "user", "assistant", "tool"):
        assert messages({"role": role, "content": parts}) == [{"role": role, "content": "a\nb"}]


@pytest.mark.parametrize("content", [None, []])
def test_an_assistant_message_may_be_empty(content: Any) -> None:
    # BR-b22
    assert messages({"role": "assistant", "content": content}) == [{"role": "assistant", "content": ""}]


def test_earlier_tool_calls_reach_the_template_with_their_arguments_as_an_object() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    odd = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "not json"}}
    given = [
        {"role": "assistant", "content": None, "tool_calls": [call, odd]},
        {"role": "tool", "content": "9", "tool_call_id": "c1", "name": "f"},
    ]
    assistant, tool = messages(*given)
    assert [made["function"]["arguments"] for made in assistant["tool_calls"]] == [{"x": 1}, "not json"]
    assert tool == {"role": "tool", "content": "9", "tool_call_id": "c1", "name": "f"}


@pytest.mark.parametrize(("known", "role"), [(False, "system"), (True, "developer")])
def test_developer_messages_are_system_messages_to_templates_that_know_no_better(known: bool, role: str) -> None:
    assert messages({"role": "developer", "content": "x"}, knows_developer_role=known)[0]["role"] == role


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": []}, "messages"),
        ("hi", "messages"),
        ([], "messages"),
        ([1], "messages[0]"),
        ([[]], "messages[0]"),
        ([None], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 42}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": "alien", "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_bad_messages_are_named_by_their_path(given: Any, param: str) -> None:
    # BR-b20
    error = refusal(messages=given)
    assert (error.kind, error.param) == (ErrorKind.INVALID, param)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video", "x" * 1000])
def test_parts_that_are_not_text_are_refused_by_name(kind: str) -> None:
    # BR-b23
    parts = [{"type": "text", "text": "What is shown?"}, {"type": kind, "image_url": {"url": "data:"}}]
    error = refusal(messages=[{"role": "user", "content": parts}])
    assert error.param == "messages[0].content[1]"
    assert kind[:40] in error.message
    assert len(error.message) < 200


def test_both_ways_to_end_the_prompt_exclude_each_other() -> None:
    # BR-n04
    assert refusal(continue_final_message=True, add_generation_prompt=True).param == "continue_final_message"
    parse_chat(fields(messages=[{"role": "user", "content": "x"}], continue_final_message=True))


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tools"])
def test_template_variables_of_the_server_are_reserved(name: str) -> None:
    assert refusal(chat_template_kwargs={name: 1}).param == f"chat_template_kwargs.{name}"


def test_the_newer_name_of_the_limit_wins() -> None:
    request = parse_chat(fields(messages=[{"role": "user", "content": "x"}], max_tokens=5, max_completion_tokens=7))
    assert request.token_limit() == 7


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprobs": True, "top_logprobs": 2_000_000_000}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": None, "top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": 0}, "logprobs"),
    ],
)
def test_numbers_of_alternatives_are_bounded_and_need_logprobs(asked: dict[str, Any], param: str) -> None:
    # BR-b07, BR-f06
    assert refusal(messages=[{"role": "user", "content": "x"}], **asked).param == param


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"top_logprobs": 0}, None),
    ],
)
def test_how_many_alternatives_are_wanted(asked: dict[str, Any], wanted: int | None) -> None:
    # BR-f06
    assert parse_chat(fields(messages=[{"role": "user", "content": "x"}], **asked)).wanted_logprobs() == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{}]),
        ("store", True),
        ("modalities", ["audio"]),
        ("audio", {}),
        ("best_of", 2),
        ("echo", True),
        ("thinking_token_budget", 100),
        ("separate_reasoning", False),
    ],
)
def test_what_this_version_does_not_do_is_refused(name: str, value: Any) -> None:
    # BR-b07
    error = refusal(**{name: value})
    assert (error.kind, error.param) == (ErrorKind.NOT_SUPPORTED, name)


def test_a_switch_that_is_off_or_null_is_accepted() -> None:
    # BR-b02
    off = {name: values[0] for name, (values,) in CHAT_SWITCHES.items() if values}
    everything = dict.fromkeys(CHAT_SWITCHES) | off
    parse_chat(fields(messages=[{"role": "user", "content": "x"}], **everything))


def test_unknown_fields_and_fields_without_effect_are_accepted() -> None:
    parse_chat(
        fields(messages=[{"role": "user", "content": "x", "extra": 1}], user="u", metadata={"a": "b"}, unknown=[1])
    )


@pytest.mark.parametrize("asked", [{"type": "text"}, None])
@pytest.mark.parametrize("stream", [True, False])
def test_plain_text_as_response_format_is_as_if_not_given(asked: Any, stream: bool) -> None:
    # BR-e17
    message = {"role": "user", "content": "x"}
    request = parse_chat(fields(messages=[message], stream=stream, response_format=asked))
    assert output_grammar(request) is None
    request.response_format = None
    assert request == parse_chat(fields(messages=[message], stream=stream))
