"""Whether schemas exclude one another, so that `oneOf` means the same as `anyOf`."""

from itertools import combinations
from typing import Any

Schema = dict[str, Any]

_MAX_REFERENCES = 8


def are_disjoint(schemas: list[Schema], definitions: dict[str, Schema]) -> bool:
    """Whether no value satisfies two of these canonical schemas, as far as types and constants tell."""
    resolved = [_resolved(schema, definitions) for schema in schemas]
    return all(_exclude(one, other, definitions) for one, other in combinations(resolved, 2))


def _resolved(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """What a reference stands for; one that is not known yet, or leads in a circle, may be anything."""
    for _ in range(_MAX_REFERENCES):
        if "$ref" not in schema:
            return schema
        schema = definitions.get(schema["$ref"].rpartition("/")[2], {})
    return {}


def _exclude(one: Schema, other: Schema, definitions: dict[str, Schema]) -> bool:
    for first, second in ((one, other), (other, one)):
        if "anyOf" in first:
            options = [_resolved(option, definitions) for option in first["anyOf"]]
            return all(_exclude(option, second, definitions) for option in options)
        if "enum" in first and "enum" in second:
            return all(not _equal(a, b) for a in first["enum"] for b in second["enum"])
    first_types, second_types = _types(one), _types(other)
    if first_types is None or second_types is None:
        return False
    if not first_types & second_types:
        return True
    return first_types == second_types == {"object"} and _differ_in_a_constant(one, other, definitions)


def _types(schema: Schema) -> set[str] | None:
    """None for any. An integer is a number."""
    if "enum" in schema:
        return {_type(value) for value in schema["enum"]}
    if "type" not in schema:
        return None
    return {"number" if schema["type"] == "integer" else schema["type"]}


def _type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _differ_in_a_constant(one: Schema, other: Schema, definitions: dict[str, Schema]) -> bool:
    """Whether a property that both require has other constants in each: a tag."""
    if "properties" not in one or "properties" not in other:
        return False
    for name in set(one.get("required", ())) & set(other.get("required", ())):
        first = _resolved(one["properties"][name], definitions)
        second = _resolved(other["properties"][name], definitions)
        if "enum" in first and "enum" in second and _exclude(first, second, definitions):
            return True
    return False


def _equal(one: object, other: object) -> bool:
    """As JSON has it: true is no 1. Containers are taken for equal, to be on the safe side."""
    if isinstance(one, list | dict) or isinstance(other, list | dict):
        return type(one) is type(other)
    return isinstance(one, bool) is isinstance(other, bool) and one == other
