"""From the fields of a request to the grammar that the engine core is sent."""

import json
from typing import Any

import pytest

from api_server.chat_schema import parse_chat
from api_server.errors import ApiError
from api_server.json_body import split_fields
from api_server.output_grammar import output_grammar
from protocol.grammar import GrammarKind, GrammarSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def grammar_of(**fields: Any) -> GrammarSpec | None:
    body = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return output_grammar(parse_chat(split_fields(json.dumps(body).encode())))


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        grammar_of(**fields)
    assert caught.value.kind.value.status == 400
    return caught.value


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_no_grammar(fields: dict[str, Any]) -> None:
    # BR-e17
    assert grammar_of(**fields) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json"),
        ({"guided_json": SCHEMA}, "guided_json"),
    ],
)  # fmt: skip
def test_schemas(fields: dict[str, Any], field: str) -> None:
    spec = grammar_of(**fields)
    assert spec is not None and (spec.kind, spec.field) == (GrammarKind.JSON_SCHEMA, field)
    assert json.loads(spec.text) == {**SCHEMA, "additionalProperties": False}


def test_any_object() -> None:
    spec = grammar_of(response_format={"type": "json_object"})
    assert spec is not None and json.loads(spec.text)["additionalProperties"] == {}
    assert spec.text == grammar_of(structured_outputs={"json_object": True}).text  # type: ignore[union-attr]


def test_other_kinds() -> None:
    assert grammar_of(guided_regex="[0-9]+") == GrammarSpec(GrammarKind.REGEX, "[0-9]+", "guided_regex")
    ebnf = 'root ::= "a" # root'
    assert grammar_of(guided_grammar=ebnf) == GrammarSpec(GrammarKind.EBNF, ebnf, "guided_grammar")
    choice = grammar_of(structured_outputs={"choice": ["a", 'b"\\', "c\n", "a"]})
    assert choice is not None and choice.text == 'root ::= "a" | "b\\"\\\\" | "c\\U0000000a"'


def test_schemas_in_structural_tags_are_enforced_too() -> None:
    content = {"type": "json_schema", "json_schema": {"properties": {"a": {"type": "string", "maxLength": 5}}}}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    spec = grammar_of(response_format={"type": "structural_tag", "format": {"type": "triggered_tags", "tags": [tag]}})
    assert spec is not None and spec.kind is GrammarKind.STRUCTURAL_TAG
    found = json.loads(spec.text)["format"]["tags"][0]["content"]
    assert found["max_whitespace_cnt"] == 1
    assert found["json_schema"]["properties"] == {"a": {"type": "string", "pattern": "^.{0,5}$"}}
    assert found["json_schema"]["additionalProperties"] is False
    older = {
        "type": "structural_tag",
        "triggers": ["<a"],
        "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
    }
    assert json.loads(grammar_of(response_format=older).text)["format"]["type"] == "triggered_tags"  # type: ignore[union-attr]
    content["json_schema"] = {"not": {}}
    error = refusal(structured_outputs={"structural_tag": {"format": {"type": "triggered_tags", "tags": [tag]}}})
    assert error.message.startswith(
        "structured_outputs.structural_tag.format.tags[0].content.json_schema: the keyword not"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "(" * 65 + ")" * 65}, "guided_regex"),
        ({"guided_regex": "a^b"}, "guided_regex"),
        ({"guided_grammar": 'start ::= "root"'}, "guided_grammar"),
        ({"guided_grammar": "root ::= " + "(" * 65 + '"a"' + ")" * 65}, "guided_grammar"),
        ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_the_place_in_a_schema_is_named() -> None:
    # BR-e07
    schema = {"type": "object", "properties": {"ok": {}, "bad": {"type": "array", "items": {"contains": {}}}}}
    error = refusal(guided_json=schema)
    assert error.message == "guided_json.properties.bad.items: the keyword contains is not supported"


def test_a_grammar_has_a_greatest_size() -> None:
    assert "bytes" in refusal(guided_choice=["é" * 200_000]).message
