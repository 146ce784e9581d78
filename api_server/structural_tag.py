"""Structural tags of callers: free text in which some parts have a format (xgrammar's notation, "Structural Tag").

Schemas in them are brought into the form that is enforced, and their JSON is kept from running away into whitespace.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from api_server.errors import invalid
from api_server.grammar_text import check_grammar_text, check_regex

MAX_DEPTH = 16
MAX_FORMATS = 512
MAX_WHITESPACE_CHARS = 1
"""Between two parts of JSON."""

Canonical = Callable[[Any, str], dict[str, Any]]
"""Brings a schema, found at this path, into the form that is enforced. Raises ApiError."""


def structural_tag_text(tag: Any, field: str, canonical: Canonical) -> str:
    """The tag as JSON. Raises ApiError."""
    if not isinstance(tag, dict):
        raise invalid(f"{field} must be an object", field)
    content = tag.get("format")
    if content is None:
        content = _of_older_kind(tag, field)
    converted = _Conversion(field, canonical).of(content, f"{field}.format", 0)
    return msgspec.json.encode({"type": "structural_tag", "format": converted}).decode()


def _of_older_kind(tag: dict[str, Any], field: str) -> dict[str, Any]:
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise invalid(f"{field} must have a format, or structures and triggers", field)
    tags = [
        {
            "type": "tag",
            "begin": structure.get("begin"),
            "content": {"type": "json_schema", "json_schema": structure.get("schema", {})},
            "end": structure.get("end"),
        }
        for structure in structures
        if isinstance(structure, dict)
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Conversion:
    """Owner of the count of formats in one tag."""

    def __init__(self, field: str, canonical: Canonical) -> None:
        self._field = field
        self._canonical = canonical
        self._formats = 0

    def of(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, list):
            return [self.of(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        self._formats += 1
        if depth > MAX_DEPTH or self._formats > MAX_FORMATS:
            raise invalid(f"{self._field} is nested too deeply, or has too many formats", self._field)
        match value.get("type"):
            case "json_schema":
                schema = _without_lengths(self._canonical(value.get("json_schema"), f"{path}.json_schema"))
                if value.get("any_order", False):
                    raise invalid(f"{path}.any_order is not supported: keys might be missing", f"{path}.any_order")
                return {**value, "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE_CHARS}
            case "regex":
                check_regex(str(value.get("pattern", "")), f"{path}.pattern")
            case "grammar" if value.get("syntax", "ebnf") == "ebnf":
                check_grammar_text(str(value.get("grammar", "")), f"{path}.grammar")
        return {name: self.of(inner, f"{path}.{name}", depth + 1) for name, inner in value.items()}


def _without_lengths(schema: Any) -> Any:
    """The schema with the lengths of strings as patterns: xgrammar lets control characters come in a string with a
    length. (In JSON outside of a tag no token has any.)"""
    if isinstance(schema, list):
        return [_without_lengths(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and ("minLength" in schema or "maxLength" in schema):
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return {"type": "string", "pattern": f"^.{{{least},{most}}}$"}
    return {word: value if word in ("enum", "required") else _without_lengths(value) for word, value in schema.items()}
