"""Values that come as text become what the tool's schema asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_answer import TOOLS

from api_server.parsers.json_text import decode_json
from api_server.parsers.tools import Tools, value_as_json


@pytest.mark.parametrize(
    ("parameter", "text", "expected"),
    [
        ("city", "3", '"3"'),
        ("city", '"x"', '"\\"x\\""'),
        ("city", ' {"a": 1}\n', '" {\\"a\\": 1}\\n"'),
        ("days", " 3\n", "3"),
        ("days", "3.0", "3.0"),
        ("days", "3.5", '"3.5"'),
        ("days", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("ratio", "3", "3"),
        ("ratio", "1e-3", "1e-3"),
        ("ratio", "NaN", '"NaN"'),
        ("exact", "true", "true"),
        ("exact", "False", "false"),
        ("exact", "1", '"1"'),
        ("options", "{}", "{}"),
        ("options", "[1]", '"[1]"'),
        ("tags", '["a", "b"]', '["a", "b"]'),
        ("tags", "['a']", '["a"]'),
        ("maybe", "null", "null"),
        ("maybe", "None", "null"),
        ("maybe", "7", "7"),
        ("either", "7", "7"),
        ("either", "seven", '"seven"'),
        ("anything", "7", "7"),
        ("anything", "seven", '"seven"'),
        ("unheard of", '{"a": 1}', '{"a": 1}'),
        ("referred", "7", "7"),
        ("chosen", "2", "2"),
        ("chosen", "two", '"two"'),
    ],
)
def test_the_schema_decides(parameter: str, text: str, expected: str) -> None:
    # BR-c07
    assert value_as_json(text, TOOLS.types("get_weather", parameter)) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Loop"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://elsewhere"},
        {"anyOf": 5},
        {"type": 5},
        {"enum": 5},
        [],
        None,
        True,
    ],
)
def test_odd_schemas_leave_the_type_open(schema: object) -> None:
    tools = Tools({"f": {"properties": {"x": schema}, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}})
    assert tools.types("f", "x") == frozenset()
    assert Tools({"f": {"properties": 5}}).types("f", "x") == frozenset()
    assert tools.types("g", "x") == frozenset()


@given(
    text=st.text(max_size=20) | st.sampled_from(["(" * 3000, "{'a': b''}", "1j", "...", "{1, 2}", "9" * 5000]),
    types=st.frozensets(st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])),
)
def test_any_text_becomes_json(text: str, types: frozenset[str]) -> None:
    decode_json(value_as_json(text, types))
