"""Schemas are brought into what can be enforced, or refused with the place and the keyword."""

from typing import Any

import pytest

from api_server.json_pattern import why_not_enforced
from api_server.json_schema import MAX_DEPTH, MAX_NODES, SchemaRefused, canonical_schema

ONE_ITEM = {"type": "array", "prefixItems": [{}], "maxItems": 1}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"title": "t", "description": "d", "default": 1, "examples": [2], "x-own": 3}, {}),
        ({"type": "string", "title": "t"}, {"type": "string"}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "uuid", "maxLength": 9}, {"type": "string", "maxLength": 9}),
        ({"maxLength": 2.0}, {"type": "string", "maxLength": 2}),
        ({"type": ["string", "null"], "minimum": 1}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "integer", "minimum": 3.5}, {"type": "integer", "minimum": 4}),
        ({"type": "integer", "exclusiveMinimum": 3.5}, {"type": "integer", "exclusiveMinimum": 3}),
        ({"type": "integer", "exclusiveMaximum": 3.5}, {"type": "integer", "exclusiveMaximum": 4}),
        ({"type": "integer", "maximum": -3.5}, {"type": "integer", "maximum": -4}),
        ({"type": "string", "enum": ["a", 1]}, {"enum": ["a"]}),
        ({"const": None}, {"enum": [None]}),
        ({"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": {}}),
        ({"properties": {"a": {}}}, closed(a={})),
        ({"type": "object", "required": ["a"]}, {**closed(a={}), "required": ["a"]}),
        ({"type": "array", "items": False, "prefixItems": [True]}, ONE_ITEM),
        ({"type": "array", "prefixItems": [True, True], "maxItems": 1}, ONE_ITEM),
        ({"allOf": [{"type": "null"}], "title": "t"}, {"type": "null"}),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}),
        (
            {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"items": {"$ref": "#/definitions/a~1b"}}}},
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "array", "items": {"$ref": "#/$defs/d0"}}}},
        ),
    ],
)  # fmt: skip
def test_schemas_in_the_form_that_is_enforced(schema: Any, expected: Any) -> None:
    assert canonical_schema(schema) == expected


@pytest.mark.parametrize(
    ("schema", "path", "word"),
    [
        (False, "", "no value"),
        ([], "", "object"),
        ({"properties": {"a": {"items": {"not": {}}}}}, ".properties.a.items", "not"),
        ({"anyOf": [{}, {"if": {}}]}, ".anyOf[1]", "if"),
        ({"$defs": {"a": {"uniqueItems": True}}, "$ref": "#/$defs/a"}, "#/$defs/a", "uniqueItems"),
        ({"type": "array", "contains": {}}, "", "contains"),
        ({"patternProperties": {"a": {}}}, "", "patternProperties"),
        ({"$ref": "#/$defs/a"}, "", "nowhere"),
        ({"$ref": "https://example.com/s"}, "", "into the schema itself"),
        ({"$ref": "#", "type": "object"}, "", "type beside $ref"),
        ({"anyOf": [{}], "properties": {}}, "", "properties beside anyOf"),
        ({"anyOf": []}, "", "anyOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "oneOf"),
        ({"oneOf": [{"enum": ["a"]}, {"type": "string"}]}, "", "oneOf"),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, "", "allOf"),
        ({"enum": ["a"], "maxLength": 1}, "", "maxLength beside enum"),
        ({"type": "null", "enum": [1]}, "", "no value"),
        ({"type": "nothing"}, "", "type"),
        ({"type": "number", "multipleOf": 0.5}, "", "multipleOf"),
        ({"type": "integer", "multipleOf": 2, "minimum": 1}, "", "multipleOf"),
        ({"type": "number", "minimum": 1e300}, "", "minimum"),
        ({"type": "number", "exclusiveMinimum": True}, "", "exclusiveMinimum"),
        ({"maxLength": -1}, "", "maxLength"),
        ({"minLength": 3, "maxLength": 2}, "", "minLength"),
        ({"pattern": "^(?=a)"}, "", "pattern"),
        ({"pattern": "a", "minLength": 1}, "", "pattern beside"),
        ({"required": ["a"], "additionalProperties": False}, "", "required"),
        ({"type": "object", "minProperties": 2}, "", "minProperties"),
        ({"required": ["a", "b"], "maxProperties": 1}, "", "maxProperties"),
        ({"items": [{}]}, "", "prefixItems"),
        ({"minItems": 2, "maxItems": 1}, "", "minItems"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: Any, path: str, word: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        canonical_schema(schema)
    assert caught.value.path == path
    assert word in caught.value.why


def test_tagged_unions_exclude_one_another() -> None:
    def tagged(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": kind}, "v": {}}, "required": ["kind"]}

    assert len(canonical_schema({"oneOf": [tagged("a"), tagged("b")], "discriminator": {}})["anyOf"]) == 2
    with pytest.raises(SchemaRefused):
        canonical_schema({"oneOf": [tagged("a"), tagged("a")]})


def test_size_and_depth_have_limits() -> None:
    # BR-b10
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    with pytest.raises(SchemaRefused, match="nested"):
        canonical_schema(deep)
    with pytest.raises(SchemaRefused, match="schemas in it"):
        canonical_schema({"anyOf": [{}] * MAX_NODES})


@pytest.mark.parametrize(
    "pattern", ["^a+$", "a", "^[a-z\\d_.-]{2,}$", "^(?:a|b)$|^c", '^[^"\\\\]$', "\\u00e9", "^\\$$", ""]
)
def test_patterns_that_are_enforced(pattern: str) -> None:
    assert why_not_enforced(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["a^b", "a$b", "(^a)", "(?=a)b", "(?!a)b", "(?<=a)b", "(?i)a", "(?P<x>a)", "\\bfoo", "(a)\\1", "\\p{L}", '"',
     "\\\\",     "\\n", "[\\x00-\\x1f]", '["]', "\\x22", "\\cA", "\\u005c", "a" * 2000],
)  # fmt: skip
def test_patterns_that_are_not(pattern: str) -> None:
    assert why_not_enforced(pattern) is not None
