"""Calls that are JSON objects, alone or in an array: {"name": ..., "arguments": {...}}.

Hermes (NousResearch, "Hermes Function Calling"), Qwen 2.5 and 3, Llama 3, Granite, xLAM, Phi-4-mini and Mistral
before version 11 differ only in what they write around it; some say "parameters".
"""

from collections.abc import Callable

from api_server.parsers.events import CallArguments, CallBegan
from api_server.parsers.json_text import as_arguments, collect_value, copy_arguments, decode_json, end_call
from api_server.parsers.source import (
    Markers,
    Source,
    Steps,
    accept,
    accept_after_spaces,
    next_character,
    skip_spaces,
)

_ARGUMENT_KEYS = ("arguments", "parameters")
_SEPARATORS, _COMMA, _COLON = Markers(",", ";"), Markers(","), Markers(":")
_ARRAY, _ARRAY_END, _OBJECT, _OBJECT_END = Markers("["), Markers("]"), Markers("{"), Markers("}")

IsFunction = Callable[[str], bool]
"""Whether a call of this name is to be taken for one."""


def any_name(name: str) -> bool:
    """For formats whose markers leave no doubt: callers want to hear of functions that the model made up."""
    return bool(name)


class _Call:
    """Owner of what is known of one object."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.call_id: str | None = None
        self.begun = False
        self.early_arguments: str | None = None
        """Arguments that came before the name."""

    def begin(self, source: Source) -> Steps[None]:
        assert self.name is not None
        source.commit()
        self.begun = True
        yield CallBegan(self.name, self.call_id)


def json_calls(source: Source, is_function: IsFunction = any_name) -> Steps[bool]:
    """An array of calls, or calls one after the other. Whether there was one; needs a mark at the beginning."""
    is_array = (yield from accept(source, _ARRAY)) is not None
    if not (yield from _json_call(source, is_function)):
        return False
    while True:
        source.mark()
        yield from skip_spaces(source)
        yield from accept(source, _SEPARATORS)
        if not (yield from _json_call(source, is_function)):
            source.give_up()
            break
    if is_array:
        yield from accept_after_spaces(source, _ARRAY_END)
    return True


def _json_call(source: Source, is_function: IsFunction) -> Steps[bool]:
    """One object. Whether a call has begun; the object's end is taken where it is there."""
    yield from skip_spaces(source)
    if (yield from accept(source, _OBJECT)) is None:
        return False
    call = _Call()
    complete = yield from _members(source, call, is_function)
    if not call.begun and complete and call.name is not None:
        yield from call.begin(source)
        yield CallArguments(call.early_arguments or "{}")
    if call.begun:
        yield from end_call(source, complete)
    return call.begun


def _members(source: Source, call: _Call, is_function: IsFunction) -> Steps[bool]:
    """Key by key up to the closing brace. Whether the call is whole."""
    while True:
        yield from skip_spaces(source)
        if (yield from accept(source, _OBJECT_END)) is not None:
            return True
        if (yield from next_character(source)) != '"':
            return False
        key = _string((yield from collect_value(source)) or "")
        yield from skip_spaces(source)
        if (yield from accept(source, _COLON)) is None:
            return False
        yield from skip_spaces(source)
        if not (yield from _value(source, call, key, is_function)):
            return False
        yield from skip_spaces(source)
        yield from accept(source, _COMMA)


def _value(source: Source, call: _Call, key: str | None, is_function: IsFunction) -> Steps[bool]:
    if key in _ARGUMENT_KEYS and call.name is not None and not call.begun:
        if not (yield from next_character(source)):
            return False
        yield from call.begin(source)
        return (yield from copy_arguments(source))
    value = yield from collect_value(source)
    if value is None:
        return False
    if key == "name":
        name = _string(value)
        call.name = name if name is not None and is_function(name) else None
        return call.name is not None
    if key == "id":
        call.call_id = _string(value)
    elif key in _ARGUMENT_KEYS and not call.begun:
        call.early_arguments = as_arguments(value)
    return True


def _string(value: str) -> str | None:
    try:
        decoded = decode_json(value)
    except ValueError:
        return None
    return decoded if isinstance(decoded, str) else None
