"""Turns a configuration Struct into command-line flags and the parsed flags back into the Struct."""

import argparse
from typing import TypeVar

import msgspec
from msgspec import inspect

from protocol.option_words import wanted

C = TypeVar("C", bound=msgspec.Struct)


def add_options(parser: argparse.ArgumentParser, config_type: type[msgspec.Struct]) -> None:
    """One `--flag` per field. Flags that are not given leave nothing in the namespace."""
    for field in _fields(config_type):
        flag = "--" + field.name.replace("_", "-")
        value_type, description = _unwrap(field.type)
        help_text = f"{description}{_default_text(field.default)}".replace("%", "%%")
        if isinstance(value_type, inspect.BoolType):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        else:
            parser.add_argument(flag, default=argparse.SUPPRESS, metavar=_metavar(value_type), help=help_text)


def read_options(namespace: argparse.Namespace, config_type: type[C]) -> C:
    """The configuration that the flags give. Raises ValueError, naming the flag, for a value that does not fit."""
    given: dict[str, object] = {}
    for field in _fields(config_type):
        if field.name in namespace:
            value = vars(namespace)[field.name]
            is_list = isinstance(_unwrap(field.type)[0], inspect.VarTupleType)
            given[field.name] = value.split(",") if is_list else value
    try:
        return msgspec.convert(given, config_type, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error), config_type, given)) from error


def _in_words(message: str, config_type: type[msgspec.Struct], given: dict[str, object]) -> str:
    """msgspec's "... - at `$.field[0]`" as "--field: must be ..."; a message without a place is ours and stays."""
    name = message.partition(" - at `$.")[2].rstrip("`").partition("[")[0]
    if not name:
        return message
    types = {field.name: field.type for field in msgspec.structs.fields(config_type)}
    value = given[name]
    shown = ",".join(value) if isinstance(value, list) else value
    return f"--{name.replace('_', '-')}: must be {wanted(types[name])} (got {shown})"


def _fields(config_type: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(config_type)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _unwrap(described: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without annotations and None, and its description."""
    description = ""
    while isinstance(described, inspect.Metadata):
        description = (described.extra_json_schema or {}).get("description", description)
        described = described.type
    if isinstance(described, inspect.UnionType):
        described = next(part for part in described.types if not isinstance(part, inspect.NoneType))
    return described, description


def _metavar(value_type: inspect.Type) -> str:
    match value_type:
        case inspect.IntType():
            return "N"
        case inspect.FloatType():
            return "X"
        case inspect.LiteralType(values=values):
            return "|".join(str(value) for value in values)
        case inspect.VarTupleType(item_type=item_type):
            return f"{_metavar(_unwrap(item_type)[0])},..."
        case _:
            return "TEXT"


def _default_text(default: object) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return f" (default: {'yes' if default else 'no'})"
    return f" (default: {default})"
