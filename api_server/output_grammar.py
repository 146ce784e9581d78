"""What a caller wants the output to look like, from the fields of the request to what the engine core is sent.

`response_format` is OpenAI's (API reference, "Create chat completion"), `structured_outputs` vLLM's, and `guided_*`
are the older names of the latter.
"""

from typing import Any, Protocol

import msgspec

from api_server.errors import invalid
from api_server.grammar_text import check_grammar_text, check_regex
from api_server.json_schema import SchemaRefused, canonical_schema
from api_server.structural_tag import structural_tag_text
from protocol.grammar import MAX_GRAMMAR_BYTES, GrammarKind, GrammarSpec

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MAX_CHOICES = 1024

Schema = str | dict[str, Any] | bool
"""Of JSON, also written as JSON in a string."""


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """`response_format.json_schema`. Whether `strict` or not: the output satisfies the schema."""

    schema: Any = None
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    """Of a structural tag."""
    structures: list[dict[str, Any]] | None = None
    """Of an older kind of structural tag."""
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structured_outputs`: one of them."""

    json: Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    """Without effect: JSON comes on one line in any case."""
    disable_fallback: bool | None = None
    """Without effect: there is nothing else to fall back on."""


class GrammarFields(Protocol):
    """All fields by which a request can ask for a grammar."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: Schema | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def output_grammar(fields: GrammarFields) -> GrammarSpec | None:
    """What the fields ask for, checked as far as that goes without the grammar back end. Raises ApiError."""
    wanted = _of_response_format(fields.response_format) | _of_structured_outputs(fields)
    if not wanted:
        return None
    if len(wanted) > 1:
        first, second, *_ = wanted
        raise invalid(f"{second} and {first} exclude each other", second)
    ((field, (kind, value)),) = wanted.items()
    text = _text(kind, value, field)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise invalid(f"{field} has more than {MAX_GRAMMAR_BYTES} bytes", field)
    return GrammarSpec(kind, text, field)


_Wanted = dict[str, tuple[GrammarKind, Any]]
"""By field."""


def _of_response_format(wanted: ResponseFormat | None) -> _Wanted:
    if wanted is None or wanted.type == "text":
        return {}
    match wanted.type:
        case "json_object":
            return {"response_format": (GrammarKind.JSON_SCHEMA, ANY_OBJECT)}
        case "json_schema":
            if wanted.json_schema is None:
                raise invalid("response_format.json_schema: required", "response_format.json_schema")
            if wanted.json_schema.schema is None:
                raise invalid("response_format.json_schema.schema: required", "response_format.json_schema.schema")
            return {"response_format.json_schema.schema": (GrammarKind.JSON_SCHEMA, wanted.json_schema.schema)}
        case "structural_tag":
            tag = msgspec.structs.asdict(wanted)
            del tag["json_schema"]
            given = {name: value for name, value in tag.items() if value is not None}
            return {"response_format": (GrammarKind.STRUCTURAL_TAG, given)}
    message = "response_format.type must be text, json_object, json_schema or structural_tag"
    raise invalid(message, "response_format.type")


def _of_structured_outputs(fields: GrammarFields) -> _Wanted:
    given = fields.structured_outputs or StructuredOutputs()
    if fields.structured_outputs is not None and not _has_any(given):
        raise invalid(
            "structured_outputs must name one of json, regex, choice, grammar, json_object, structural_tag",
            "structured_outputs",
        )
    wanted: dict[str, tuple[GrammarKind, Any]] = {
        "structured_outputs.json": (GrammarKind.JSON_SCHEMA, given.json),
        "structured_outputs.json_object": (GrammarKind.JSON_SCHEMA, ANY_OBJECT if given.json_object else None),
        "structured_outputs.regex": (GrammarKind.REGEX, given.regex),
        "structured_outputs.choice": (GrammarKind.EBNF, given.choice),
        "structured_outputs.grammar": (GrammarKind.EBNF, given.grammar),
        "structured_outputs.structural_tag": (GrammarKind.STRUCTURAL_TAG, given.structural_tag),
        "guided_json": (GrammarKind.JSON_SCHEMA, fields.guided_json),
        "guided_regex": (GrammarKind.REGEX, fields.guided_regex),
        "guided_choice": (GrammarKind.EBNF, fields.guided_choice),
        "guided_grammar": (GrammarKind.EBNF, fields.guided_grammar),
    }
    return {field: wish for field, wish in wanted.items() if wish[1] is not None}


def _has_any(given: StructuredOutputs) -> bool:
    wishes = (given.json, given.regex, given.choice, given.grammar, given.structural_tag)
    return bool(given.json_object) or any(wish is not None for wish in wishes)


def _text(kind: GrammarKind, value: Any, field: str) -> str:
    match kind:
        case GrammarKind.JSON_SCHEMA:
            return _json_text(_canonical(_decoded(value, field), field))
        case GrammarKind.REGEX:
            check_regex(value, field)
            return str(value)
        case GrammarKind.EBNF:
            if isinstance(value, list):
                return _choice_grammar(value, field)
            check_grammar_text(value, field)
            return str(value)
        case GrammarKind.STRUCTURAL_TAG:
            tag = _decoded(value, field)
            return structural_tag_text(tag, field, lambda schema, path: _canonical(schema, path))


def _decoded(value: Any, field: str) -> Any:
    """What stands in a string as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{field} is not valid JSON", field) from error


def _canonical(schema: Any, field: str) -> dict[str, Any]:
    try:
        return canonical_schema(schema)
    except SchemaRefused as refused:
        path = field + refused.path if not refused.path.startswith("#") else f"{field} ({refused.path})"
        raise invalid(f"{path}: {refused.why}", field) from refused


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _choice_grammar(choices: list[str], field: str) -> str:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise invalid(f"{field} must have 1 to {MAX_CHOICES} entries", field)
    if not all(choices):
        raise invalid(f"{field} must have no empty entry", field)
    return "root ::= " + " | ".join(_literal(choice) for choice in dict.fromkeys(choices))


def _literal(text: str) -> str:
    """A string of the grammar's notation."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'
