"""docs/http-api.md lists every field that the routes know, and no other, under what becomes of it."""

import re
from pathlib import Path

import msgspec
import pytest

from api_server.chat_schema import ChatRequest, parse_chat
from api_server.completion_schema import CompletionRequest, parse_completion
from api_server.errors import ApiError, ErrorKind
from api_server.json_body import Fields
from api_server.unsupported import CHAT_SWITCHES, COMPLETION_SWITCHES, WITHOUT_EFFECT

PAGE = Path(__file__).parents[3].joinpath("docs/http-api.md").read_text("utf-8")
CHAT, COMPLETIONS = "chat", "completions"


def listed(section: str, route: str) -> list[str]:
    """Fields of the section's table that hold for the route."""
    text = PAGE.split(f"### {section}\n", 1)[1].split("\n#", 1)[0]
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| `")]
    return [name for row in rows if row[1].strip() in ("both", route) for name in re.findall(r"`(\w+)`", row[0])]


def raw(**fields: object) -> Fields:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


@pytest.mark.parametrize(("route", "schema"), [(CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)])
def test_what_is_supported(route: str, schema: type[msgspec.Struct]) -> None:
    assert sorted(listed("Supported", route)) == sorted(schema.__struct_fields__)


@pytest.mark.parametrize(("route", "switches"), [(CHAT, CHAT_SWITCHES), (COMPLETIONS, COMPLETION_SWITCHES)])
def test_what_is_refused(route: str, switches: dict[str, object]) -> None:
    assert sorted(listed('Refused unless they say "off"', route)) == sorted(switches)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_what_is_without_effect(route: str) -> None:
    assert sorted(listed("Without effect", route)) == sorted(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", CHAT_SWITCHES)
def test_what_chat_refuses(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(raw(messages=[{"role": "user", "content": "x"}], **{name: {"some": "thing"}}))
    assert (caught.value.kind, caught.value.param) == (ErrorKind.NOT_SUPPORTED, name)


@pytest.mark.parametrize("name", COMPLETION_SWITCHES)
def test_what_completions_refuse(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(raw(prompt="x", **{name: {"some": "thing"}}))
    assert (caught.value.kind, caught.value.param) == (ErrorKind.NOT_SUPPORTED, name)


@pytest.mark.parametrize("name", sorted(set(ChatRequest.__struct_fields__) - {"tool_choice", "seed"}))
@pytest.mark.parametrize("value", [{"wrong": [1]}, [[None]], "\x00", 1e300])
def test_wrong_types_of_chat_fields_are_named(name: str, value: object) -> None:
    """A value may be right for its field; what is not is told by name."""
    try:
        parse_chat(raw(**{"messages": [{"role": "user", "content": "x"}], name: value}))
    except ApiError as error:
        assert (error.kind, (error.param or "").partition("[")[0].partition(".")[0]) == (ErrorKind.INVALID, name)
