"""JSON schemas of callers, brought into a form in which the grammar back end honours every word.

The result is an equivalent of the schema, or something narrower, so that whatever is generated satisfies the schema;
a schema for which there is no such thing is refused, naming the place and the keyword. In the result

- each object says whether it takes further properties: an object with properties takes none unless it says so, as
  OpenAI's strict mode wants it, and as callers mean it; one without properties takes any;
- required properties are declared;
- keywords of several types are alternatives with one type each;
- references stand for definitions of the result's own (`$defs`), each of which was brought into that form.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from api_server.json_pattern import why_not_enforced
from api_server.json_schema_disjoint import are_disjoint
from api_server.json_schema_keywords import ALTERNATIVES, ANNOTATIONS, BY_TYPE, FORMATS, REFUSED, STRUCTURAL, TYPES

MAX_DEPTH = 64
MAX_NODES = 4096
MAX_INTEGER = 2**53
SMALLEST_BOUND = 1e-6
"""Bounds of numbers closer to 0 are not told apart from it."""

Schema = dict[str, Any]


class SchemaRefused(Exception):
    """A schema cannot be enforced: `path` is the place in it, such as `.properties.a`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


def canonical_schema(schema: object) -> Schema:
    """See the head of the module. Raises SchemaRefused."""
    conversion = _Conversion(schema)
    result = conversion.of(schema, "", 0)
    return {**result, "$defs": conversion.definitions} if conversion.definitions else result


class _Conversion:
    """Owner of what has been found in one schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        """By reference."""
        self._nodes = 0
        self.definitions: dict[str, Schema] = {}

    def of(self, schema: object, path: str, depth: int) -> Schema:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise SchemaRefused(path, f"nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            raise SchemaRefused("", f"more than {MAX_NODES} schemas in it")
        if schema is True:
            return {}
        if schema is False:
            raise SchemaRefused(path, "allows no value")
        if not isinstance(schema, dict):
            raise SchemaRefused(path, "must be an object or a boolean")
        words = {word: value for word, value in schema.items() if word not in ANNOTATIONS}
        for word in words:
            if word in REFUSED:
                raise SchemaRefused(path, f"the keyword {word} is not supported")
        if path and "$id" in schema:
            raise SchemaRefused(path, "the keyword $id is only supported at the root")
        return self._of_words(words, path, depth)

    def _of_words(self, words: Schema, path: str, depth: int) -> Schema:
        if "$ref" in words:
            _check_alone(words, "$ref", path)
            return self._reference(words["$ref"], path, depth)
        for word in ALTERNATIVES:
            if word in words:
                _check_alone(words, word, path)
                return self._alternatives(word, words[word], path, depth)
        types = _types(words, path)
        if "enum" in words or "const" in words:
            return _enumeration(words, types, path)
        options = [self._of_type(type_, words, path, depth) for type_ in types]
        if not options:
            return {}
        return options[0] if len(options) == 1 else {"anyOf": options}

    # --- references and alternatives ------------------------------------------------------------------------------

    def _reference(self, reference: object, path: str, depth: int) -> Schema:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaRefused(path, "$ref must point into the schema itself (#/...)")
        name = self._names.get(reference)
        if name is None:
            name = self._names[reference] = f"d{len(self._names)}"
            self.definitions[name] = self.of(self._target(reference, path), reference, depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _target(self, reference: str, path: str) -> object:
        """RFC 6901, section 6."""
        found: object = self._root
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise SchemaRefused(path, "$ref points nowhere")
        return found

    def _alternatives(self, word: str, schemas: object, path: str, depth: int) -> Schema:
        if not isinstance(schemas, list) or not schemas:
            raise SchemaRefused(path, f"{word} must be an array of schemas")
        if word == "allOf" and len(schemas) > 1:
            raise SchemaRefused(path, "allOf with more than one schema is not supported")
        options = [self.of(schema, f"{path}.{word}[{index}]", depth + 1) for index, schema in enumerate(schemas)]
        if len(options) == 1:
            return options[0]
        if word == "oneOf" and not are_disjoint(options, self.definitions):
            raise SchemaRefused(path, "oneOf is only supported for schemas that exclude one another: use anyOf")
        return {"anyOf": options}

    # --- types ------------------------------------------------------------------------------------------------------

    def _of_type(self, type_: str, words: Schema, path: str, depth: int) -> Schema:
        own = {word: words[word] for word in words if word in BY_TYPE.get(type_, ())}
        match type_:
            case "string":
                return _string(own, path)
            case "integer" | "number":
                return {"type": type_, **_bounds(type_, own, path)}
            case "array":
                return self._array(own, path, depth)
            case "object":
                return self._object(own, path, depth)
        return {"type": type_}

    def _array(self, words: Schema, path: str, depth: int) -> Schema:
        least, most = _count(words, "minItems", path), _count(words, "maxItems", path)
        if words.get("uniqueItems", False) is not False:
            raise SchemaRefused(path, "the keyword uniqueItems is not supported")
        result: Schema = {"type": "array"}
        prefix = self._prefix(words, path, depth)[:most]
        if prefix:
            result["prefixItems"] = prefix
        if words.get("items") is False:
            most = min(len(prefix), len(prefix) if most is None else most)
        elif "items" in words and (most is None or most > len(prefix)):
            result["items"] = self.of(words["items"], f"{path}.items", depth + 1)
        if (least or 0) > (math.inf if most is None else most):
            raise SchemaRefused(path, "minItems is more than there can be")
        return result | _given(minItems=least, maxItems=most)

    def _prefix(self, words: Schema, path: str, depth: int) -> list[Schema]:
        if isinstance(words.get("items"), list):
            raise SchemaRefused(path, "an array of items is not supported: use prefixItems")
        items = words.get("prefixItems", [])
        if not isinstance(items, list):
            raise SchemaRefused(path, "prefixItems must be an array of schemas")
        return [self.of(item, f"{path}.prefixItems[{index}]", depth + 1) for index, item in enumerate(items)]

    def _object(self, words: Schema, path: str, depth: int) -> Schema:
        declared, required = words.get("properties", {}), words.get("required", [])
        if not isinstance(declared, dict):
            raise SchemaRefused(path, "properties must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaRefused(path, "required must be an array of strings")
        properties = {
            name: self.of(schema, f"{path}.properties.{name}", depth + 1) for name, schema in declared.items()
        }
        further = words.get("additionalProperties", not (properties or required))
        others: Any = False if further is False else self.of(further, f"{path}.additionalProperties", depth + 1)
        for name in required:
            if name not in properties:
                if words.get("additionalProperties", True) is False:
                    raise SchemaRefused(path, f"{name[:40]} is required, but no property")
                properties[name] = {} if others is False else others
        result: Schema = {"type": "object", "properties": properties, "additionalProperties": others}
        return result | _given(required=[*dict.fromkeys(required)] or None) | _sizes(words, result, required, path)


def _sizes(words: Schema, schema: Schema, required: list[str], path: str) -> Schema:
    """Of an object. Further properties may come twice, which counts once: so their number is not known."""
    least, most = _count(words, "minProperties", path), _count(words, "maxProperties", path)
    if least is not None and least <= len(set(required)):
        least = None
    if least is not None and least > 1 and schema["additionalProperties"] is not False:
        raise SchemaRefused(path, "minProperties above 1 is only supported without additionalProperties")
    if least is not None and schema["additionalProperties"] is False and least > len(schema["properties"]):
        raise SchemaRefused(path, "minProperties is more than there can be")
    if most is not None and most < max(least or 0, len(set(required))):
        raise SchemaRefused(path, "maxProperties is less than there must be")
    return _given(minProperties=least, maxProperties=most)


def _types(words: Schema, path: str) -> list[str]:
    """Those that a value may have; without `type`, those that the other keywords are about; none for all."""
    given = words.get("type")
    if given is None:
        return [type_ for type_ in TYPES if type_ != "integer" and BY_TYPE.get(type_, frozenset()) & words.keys()]
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not types or not all(type_ in TYPES for type_ in types):
        raise SchemaRefused(path, f"type must be of {', '.join(TYPES)}")
    return [*dict.fromkeys(types)]


def _enumeration(words: Schema, types: list[str], path: str) -> Schema:
    for word in words:
        if word in BY_WORD or (word == "const" and "enum" in words):
            raise SchemaRefused(path, f"{word} beside enum or const is not supported")
    values = words["enum"] if "enum" in words else [words["const"]]
    if not isinstance(values, list):
        raise SchemaRefused(path, "enum must be an array")
    if "type" in words:
        values = [value for value in values if any(_IS_OF_TYPE[type_](value) for type_ in types)]
    if not values:
        raise SchemaRefused(path, "enum allows no value")
    return {"enum": values}


BY_WORD = frozenset(word for words in BY_TYPE.values() for word in words)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS_OF_TYPE: Mapping[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),  # type: ignore[call-overload]
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _check_alone(words: Schema, word: str, path: str) -> None:
    for other in words:
        if other != word and (other in STRUCTURAL or other in BY_WORD):
            raise SchemaRefused(path, f"{other} beside {word} is not supported")


def _string(words: Schema, path: str) -> Schema:
    least, most = _count(words, "minLength", path), _count(words, "maxLength", path)
    if most is not None and (least or 0) > most:
        raise SchemaRefused(path, "minLength is more than maxLength")
    result: Schema = {"type": "string"} | _given(minLength=least, maxLength=most)
    if "pattern" in words:
        pattern = words["pattern"]
        if not isinstance(pattern, str):
            raise SchemaRefused(path, "pattern must be a string")
        if len(result) > 1:
            raise SchemaRefused(path, "pattern beside minLength or maxLength is not supported")
        why = why_not_enforced(pattern)
        if why is not None:
            raise SchemaRefused(path, f"pattern with {why} is not supported")
        result["pattern"] = pattern
    elif words.get("format") in FORMATS and len(result) == 1:
        result["format"] = words["format"]
    return result


def _bounds(type_: str, words: Schema, path: str) -> Schema:
    """Of numbers."""
    if "multipleOf" in words and (type_ == "number" or len(words) > 1 or not _is_whole(words["multipleOf"])):
        raise SchemaRefused(path, "multipleOf is only supported for integers, without bounds")
    result: Schema = {}
    for word, value in words.items():
        if not _is_number(value) or abs(value) > MAX_INTEGER or 0 < abs(value) < SMALLEST_BOUND:
            raise SchemaRefused(path, f"{word} must be a number of at most 2^53 in amount, and not almost 0")
        result[word] = _whole_bound(word, value) if type_ == "integer" else value
    return result


def _is_whole(value: object) -> bool:
    return _IS_OF_TYPE["integer"](value) and value > 0  # type: ignore[operator]


def _whole_bound(word: str, value: float) -> int:
    """The same for integers: 3.5 as a minimum is 4, and an excluded one is 3."""
    if word == "multipleOf" or value == int(value):
        return int(value)
    return int(value // 1) + (word in ("minimum", "exclusiveMaximum"))


def _count(words: Schema, word: str, path: str) -> int | None:
    value = words.get(word)
    if value is None:
        return None
    if not _IS_OF_TYPE["integer"](value) or not 0 <= value <= MAX_INTEGER:
        raise SchemaRefused(path, f"{word} must be an integer, and not negative")
    return int(value)


def _given(**words: object) -> Schema:
    return {word: value for word, value in words.items() if value is not None}
