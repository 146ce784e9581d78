"""Request bodies: bytes to a checked msgspec Struct.

Two stages, so that each fault can name its field: the body becomes a table of undecoded fields first, then each
field that the schema knows is decoded by itself. Explicit nulls mean "not given". Unknown fields are ignored.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import Headers

from api_server.errors import ApiError, ErrorKind, invalid

Fields = dict[str, msgspec.Raw]
T = TypeVar("T", bound=msgspec.Struct)

_object_decoder = msgspec.json.Decoder(Fields)
_value_decoder = msgspec.json.Decoder()
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")


class Switch(NamedTuple):
    """A field of the API that this version does not act on: the values that mean "off", all others are refused."""

    off: tuple[object, ...] = ()


NEVER = Switch()
"""Only null is accepted."""


def check_headers(headers: Headers) -> None:
    """Whether what follows is JSON as it is. Raises ApiError."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(ErrorKind.MEDIA_TYPE, "the content type must be application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(ErrorKind.MEDIA_TYPE, "compressed request bodies are not supported")


def split_fields(body: bytes) -> Fields:
    """The body's top-level fields. Raises ApiError."""
    try:
        return _object_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid("the request body must be a JSON object", None) from error
    except msgspec.DecodeError as error:
        # msgspec calls half a surrogate pair "truncated", which would send callers looking for lost bytes.
        hint = " (strings must not hold unpaired surrogates)" if b"\\ud" in body.lower() else ""
        raise invalid(f"the request body is not valid JSON: {error}{hint}", None) from error
    except RecursionError as error:
        raise invalid("the request body is nested too deeply", None) from error


def parse(fields: Fields, schema: type[T], switches: Mapping[str, Switch]) -> T:
    """The fields as a `schema`. Raises ApiError naming the field, also for a switch that is not off."""
    for name, switch in switches.items():
        if name in fields:
            _check_switch(name, _decode(name, fields[name]), switch)
    known = {name: _decode(name, fields[name]) for name in schema.__struct_fields__ if name in fields}
    given = {name: value for name, value in known.items() if value is not None}
    try:
        return msgspec.convert(given, schema)
    except msgspec.ValidationError as error:
        raise _with_path(str(error)) from error


def _decode(name: str, raw: msgspec.Raw) -> Any:
    try:
        return _value_decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise invalid(f"{name}: {_PATH.sub(_only_what, str(error))}", name) from error
    except RecursionError as error:
        raise invalid(f"{name} is nested too deeply", name) from error


def _only_what(match: re.Match[str]) -> str:
    return match["what"]


def _check_switch(name: str, value: object, switch: Switch) -> None:
    # Types are compared too: for `logprobs`, 0 asks for something and false does not.
    if value is None or any(type(value) is type(off) and value == off for off in switch.off):
        return
    raise ApiError(ErrorKind.NOT_SUPPORTED, f"{name} is not supported by this server", name)


def _with_path(text: str) -> ApiError:
    match = _PATH.match(text)
    what, path = (match["what"], match["path"]) if match else (text, None)
    path = path and path.partition("[...]")[0]  # msgspec's "some value of this object"
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        what = "required"
    what = what[0].lower() + what[1:]
    return invalid(f"{path}: {what}" if path else what, path or None)
