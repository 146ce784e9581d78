"""The JSON Schema Test Suite, draft 2020-12: what is accepted is honoured, by what xgrammar makes of it.

For each schema that the API server lets pass: no instance that the suite calls invalid is an output, and what random
walks over the allowed tokens put out is valid by the `jsonschema` package.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from byte_model import EOS, accepts, allowed, byte_card, compiled

from api_server.json_schema import SchemaRefused, canonical_schema
from engine_core.grammar import Grammar
from engine_core.xgrammar_backend import XgrammarBackend
from protocol.grammar import GrammarKind

SUITE: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "json_schema_test_suite" / "draft2020-12.json").read_text()
)
REAL_WORLD: list[Any] = [
    {"type": "object", "required": ["a"]},  # BR-e09
    {"type": "object", "minProperties": 1},
    {"type": "array", "minItems": 2},
    {"type": "object", "properties": {"b": {}}, "required": ["a", "b"], "additionalProperties": {"type": "integer"}},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$|^x+$"},
    {"type": ["string", "null"], "maxLength": 2},
    {"enum": ["a", 'q"', "\n", None, 1.5, {"b": [True]}]},
    {"type": "integer", "exclusiveMinimum": -3.5, "maximum": 7.5},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 20.25},
    {"type": "integer", "multipleOf": 7},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False, "minItems": 1},
    {
        "$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}},
            "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
        },
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            {"$ref": "#/$defs/dog"},
        ],
    },
    {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}, "required": ["at"]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
]
WALKS = 4
WALK_BYTES = 300
SHARE_ACCEPTED = 0.38


@pytest.fixture(scope="module")
def backend() -> XgrammarBackend:
    return XgrammarBackend(byte_card())


def canonical(schema: Any) -> str | None:
    try:
        return json.dumps(canonical_schema(schema))
    except SchemaRefused as refused:
        assert refused.why
        return None


def walked(grammar: Grammar, seed: int) -> bytes | None:
    """A random output, drawn to come to an end; None for one that does not."""
    draw, matcher, output = random.Random(seed), grammar.matcher(), bytearray()
    while len(output) < WALK_BYTES:
        tokens = allowed(matcher)
        if EOS in tokens and (len(tokens) == 1 or draw.random() < 0.3):
            return bytes(output)
        closing = [token for token in tokens if chr(token) in '"}],:']
        token = draw.choice(closing if closing and draw.random() < 0.5 else [t for t in tokens if t != EOS])
        assert matcher.accept(token)
        output.append(token)
    return None


def check_walks(grammar: Grammar, schema: Any) -> int:
    validator = jsonschema.Draft202012Validator(schema)
    outputs = [output for seed in range(WALKS) if (output := walked(grammar, seed)) is not None]
    for output in outputs:
        validator.validate(json.loads(output))
    return len(outputs)


def test_what_is_accepted_is_never_wrongly_honoured(backend: XgrammarBackend) -> None:
    counts: Counter[str] = Counter()
    for file, cases in SUITE.items():
        for case in cases:
            text = canonical(case["schema"])
            if text is None:
                counts["refused"] += 1
                continue
            counts["accepted"] += 1
            grammar = compiled(GrammarKind.JSON_SCHEMA, text, backend)
            for test in case["tests"]:
                is_output = accepts(grammar, json.dumps(test["data"], ensure_ascii=False))
                assert test["valid"] or not is_output, (file, case["description"], test["data"])
                counts["valid, and an output"] += is_output
            counts["walks"] += check_walks(grammar, case["schema"])
    assert counts["accepted"] / (counts["accepted"] + counts["refused"]) > SHARE_ACCEPTED, counts
    assert counts["walks"] > 500 and counts["valid, and an output"] > 150, counts


@pytest.mark.parametrize("schema", REAL_WORLD, ids=lambda schema: json.dumps(schema)[:60])
def test_schemas_as_callers_write_them(backend: XgrammarBackend, schema: Any) -> None:
    text = canonical(schema)
    assert text is not None
    assert check_walks(compiled(GrammarKind.JSON_SCHEMA, text, backend), schema) > 0


def test_a_string_with_a_length_has_no_raw_control_characters(backend: XgrammarBackend) -> None:
    text = canonical({"type": "string", "minLength": 1})
    assert text is not None
    assert not accepts(compiled(GrammarKind.JSON_SCHEMA, text, backend), '"\t"')
