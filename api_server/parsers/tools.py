"""The functions that a request offers, as parsers need them: names, and types of parameters (JSON Schema 2020-12)."""

import ast
from collections.abc import Mapping
from typing import Any

import msgspec

from api_server.parsers.json_text import decode_json

MAX_SCHEMA_HOPS = 8
"""How deep references and alternatives are followed to find a parameter's types."""
STRING = frozenset({"string"})
_PYTHON_TYPES: list[tuple[type, tuple[str, ...]]] = [
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (str, ("string",)),
    (list, ("array",)),
    (dict, ("object",)),
    (type(None), ("null",)),
]

Types = frozenset[str]
"""Names of JSON Schema types; empty when a schema leaves them open."""


class Tools:
    """The functions of one request. Immutable."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        """`parameters`: for each function's name the schema of its parameters, an object."""
        self._parameters = parameters

    def has(self, name: str) -> bool:
        """Whether the request offers a function of this name."""
        return name in self._parameters

    def types(self, function: str, parameter: str) -> Types:
        """What the schema says that a parameter may be."""
        schema = self._parameters.get(function, {})
        properties = schema.get("properties")
        if not isinstance(properties, dict) or parameter not in properties:
            return frozenset()
        return _types(properties[parameter], schema, MAX_SCHEMA_HOPS)


def value_as_json(text: str, types: Types) -> str:
    """What a format without types wrote, as the JSON that the schema asks for; a string where nothing else fits."""
    if types == STRING:
        return _encode(text)
    stripped = text.strip()
    for read in (decode_json, _python_literal):
        try:
            value = read(stripped)
        except ValueError:
            continue
        if not types or types & set(_types_of(value)):
            return stripped if read is decode_json else _encode(value)
    return _encode(text)


def _python_literal(text: str) -> Any:
    """True, None, {'a': 1}: what models write when they think of Python. Raises ValueError."""
    try:
        value = ast.literal_eval(text)
        decode_json(_encode(value))
    except (SyntaxError, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError("not a literal") from error
    if isinstance(value, bytes | set | tuple | complex):
        raise ValueError("not a value of JSON")
    return value


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _types_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, float) and value.is_integer():
        return ("integer", "number")
    return next(names for kind, names in _PYTHON_TYPES if isinstance(value, kind))


def _types(schema: Any, root: Mapping[str, Any], hops: int) -> Types:
    if not isinstance(schema, dict) or hops == 0:
        return frozenset()
    found: set[str] = set()
    declared = schema.get("type")
    found.update(name for name in (declared if isinstance(declared, list) else [declared]) if isinstance(name, str))
    if not found:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found.update(name for value in (values if isinstance(values, list) else []) for name in _types_of(value))
    for inner in _inner_schemas(schema, root):
        found |= _types(inner, root, hops - 1)
    return frozenset(found)


def _inner_schemas(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    inner = []
    for keyword in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(keyword)
        inner += alternatives if isinstance(alternatives, list) else []
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        inner.append(_resolve(reference, root))
    return inner


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for part in reference[2:].split("/"):
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place
