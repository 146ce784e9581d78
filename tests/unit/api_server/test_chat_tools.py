"""Tools of a request: what is accepted, what is refused by name, what the template gets."""

from typing import Any

import msgspec
import pytest

from api_server.chat_schema import ChatRequest, parse_chat
from api_server.chat_tools import MAX_SCHEMA_DEPTH, MAX_TOOLS, parser_tools, template_tools
from api_server.errors import ApiError, ErrorKind


def parse(**values: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "x"}], **values}
    return parse_chat({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()})


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"x": schema}
    return schema


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"type": "object", "properties": {}}},
        {"strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
        {"description": None, "strict": None},
    ],
)
def test_functions_without_parameters_have_an_empty_object_of_them(more: dict[str, Any]) -> None:
    # BR-c24
    [tool] = template_tools(parse(tools=[function("now", **more)]).tools)
    assert tool["function"]["parameters"] | {"additionalProperties": False} == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert tool["type"] == "function"
    assert "description" not in tool["function"]


def test_the_template_gets_name_description_and_parameters_as_they_were_given() -> None:
    parameters = {"type": "object", "properties": {"b": {"maxLength": 20000}, "a": {}}, "required": ["a"]}
    request = parse(tools=[function(description="d", parameters=parameters)])
    [tool] = template_tools(request.tools)
    assert tool == {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    assert list(tool["function"]["parameters"]["properties"]) == ["b", "a"]
    assert parser_tools(request.tools).has("f")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ("x", "tools"),
        ([5], "tools[0]"),
        ([{}], "tools[0].type"),
        ([{"type": "custom", "custom": {"name": "x"}}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([function(), {"type": "function", "function": {}}], "tools[1].function.name"),
        ([function("")], "tools[0].function.name"),
        ([function("a" * 65)], "tools[0].function.name"),
        ([function("two words")], "tools[0].function.name"),
        ([function("naïve")], "tools[0].function.name"),
        ([function("f\n")], "tools[0].function.name"),
        ([function(5)], "tools[0].function.name"),
        ([function(), function()], "tools[1].function.name"),
        ([function(description=5)], "tools[0].function.description"),
        ([function(parameters=[])], "tools[0].function.parameters"),
        ([function(parameters="{}")], "tools[0].function.parameters"),
        ([function(parameters={"type": "array"})], "tools[0].function.parameters.type"),
        ([function(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([function(parameters=nested(MAX_SCHEMA_DEPTH + 1))], "tools[0].function.parameters"),
        ([function(str(number)) for number in range(MAX_TOOLS + 1)], "tools"),
    ],
)
def test_bad_tools_are_named_by_their_path(tools: Any, param: str) -> None:
    # BR-b10, BR-e07
    with pytest.raises(ApiError) as caught:
        parse(tools=tools)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID, param)
    assert len(caught.value.message) < 200


def test_a_schema_may_be_as_deep_as_the_limit_and_a_body_no_deeper_than_the_parser_goes() -> None:
    parse(tools=[function(parameters=nested(MAX_SCHEMA_DEPTH))])
    deep = msgspec.Raw(
        b'[{"type":"function","function":{"name":"f","parameters":' + b'{"a":' * 5000 + b"1" + b"}" * 5003 + b"]"
    )
    with pytest.raises(ApiError) as caught:
        parse_chat({"messages": msgspec.Raw(b'[{"role":"user","content":"x"}]'), "tools": deep})
    assert caught.value.param is not None
    assert caught.value.param.startswith("tools")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "f"}}, {"type": "allowed_tools"}]
)
def test_a_call_cannot_be_forced_yet(choice: Any) -> None:
    # BR-c19: not turned into auto
    with pytest.raises(ApiError) as caught:
        parse(tools=[function()], tool_choice=choice)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.NOT_SUPPORTED, "tool_choice")


@pytest.mark.parametrize(
    ("choice", "tools"), [("required", []), ("sometimes", [function()]), (5, [function()]), (True, [])]
)
def test_other_choices_are_mistakes(choice: Any, tools: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse(tools=tools, tool_choice=choice)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID, "tool_choice")


def test_tools_that_the_model_may_not_call_are_not_offered() -> None:
    assert parse(tools=[function()], tool_choice="none").offered_tools == []
    for choice in ("auto", None):
        assert len(parse(tools=[function()], tool_choice=choice).offered_tools) == 1


@pytest.mark.parametrize("effort", ["extreme", 5, ""])
def test_an_unknown_effort_is_named(effort: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse(reasoning_effort=effort)
    assert caught.value.param == "reasoning_effort"
