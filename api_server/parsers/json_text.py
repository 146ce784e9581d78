"""JSON as a model writes it, read while it comes (RFC 8259).

The scan knows strings and brackets, which is what it takes to find a value's end whatever its strings hold. Text
is passed on as it was written, except for what models do in strings and JSON forbids: line breaks and other
control characters, and escapes that do not exist.
"""

import enum
import re
from typing import Any

import msgspec

from api_server.parsers.events import CallArguments, CallBegan, CallEnded
from api_server.parsers.source import Source, Steps, next_character, skip_spaces

_CLOSERS = {"{": "}", "[": "]"}
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_OUTSIDE_RUN = re.compile(r"[\w\s,:+\-.]*")
_SCALAR_RUN = re.compile(r"[\w+\-.]*")
_ARGUMENT_STARTS = ("{", '"', "n")
"""An object, an object inside a string, null."""
_ESCAPABLE = frozenset('"\\/bfnrtu')

Object = dict[str, Any]


class Reading(enum.Enum):
    """How far a value was read."""

    OPEN = enum.auto()
    COMPLETE = enum.auto()
    BROKEN = enum.auto()
    """What comes next cannot belong to it."""


class JsonScan:
    """Owner of the state of one value. Its first character must not be white space."""

    def __init__(self) -> None:
        self.state = Reading.OPEN
        self._closers: list[str] = []
        self._begun = False
        self._in_string = False
        self._escaped = False

    def take(self, source: Source) -> str:
        """Takes what belongs to the value from what there is; returns it as valid JSON text."""
        parts: list[str] = []
        while self.state is Reading.OPEN and source.rest:
            if self._escaped:
                parts.append(self._escape(source.take(1)))
            elif self._in_string:
                parts.append(self._string(source))
            elif self._begun and not self._closers:
                parts.append(self._scalar(source))
            else:
                parts.append(self._outside(source))
        return "".join(parts)

    def end(self) -> None:
        """There is no more text."""
        if self.state is Reading.OPEN:
            is_scalar = self._begun and not self._closers and not self._in_string
            self.state = Reading.COMPLETE if is_scalar else Reading.BROKEN

    def _string(self, source: Source) -> str:
        match = _STRING_RUN.match(source.rest)
        assert match is not None
        if match.end():
            return source.take(match.end())
        character = source.take(1)
        if character == "\\":
            self._escaped = True
            return ""  # comes with the next character
        if character != '"':
            return json_escaped(character)
        self._in_string = False
        self._complete_at_the_outside()
        return character

    def _escape(self, character: str) -> str:
        self._escaped = False
        if character in _ESCAPABLE:
            return "\\" + character
        return character if character == "'" else "\\\\" + json_escaped(character)

    def _scalar(self, source: Source) -> str:
        match = _SCALAR_RUN.match(source.rest)
        assert match is not None
        taken = source.take(match.end())
        if source.rest:
            self.state = Reading.COMPLETE
        return taken

    def _outside(self, source: Source) -> str:
        if self._begun:
            match = _OUTSIDE_RUN.match(source.rest)
            assert match is not None
            if match.end():
                return source.take(match.end())
        character = source.rest[0]
        if character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif character == '"':
            self._in_string = True
        elif self._closers and character == self._closers[-1]:
            self._closers.pop()
            self._complete_at_the_outside()
        elif self._begun or not _SCALAR_RUN.match(character):
            self.state = Reading.BROKEN
            return ""
        self._begun = True
        return source.take(1)

    def _complete_at_the_outside(self) -> None:
        if not self._closers:
            self.state = Reading.COMPLETE


def json_escaped(text: str) -> str:
    """The text as the inside of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]


def decode_json(text: str) -> Any:
    """The value. Raises ValueError for anything but one JSON value, also for one that is nested too deeply."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def collect_value(source: Source) -> Steps[str | None]:
    """JSON text of the value that begins here; None when there is none, or only a part of one."""
    scan = JsonScan()
    parts = []
    while True:
        parts.append(scan.take(source))
        if source.ended:
            scan.end()
        if scan.state is not Reading.OPEN:
            return "".join(parts) if scan.state is Reading.COMPLETE else None
        yield None


def copy_arguments(source: Source) -> Steps[bool]:
    """Passes on the arguments of a call that has begun. Whether they are complete.

    Some models write the object as a string, or null for none.
    """
    if (yield from next_character(source)) != "{":
        value = yield from collect_value(source)
        if value is not None:
            yield CallArguments(as_arguments(value))
        return value is not None
    scan = JsonScan()
    while True:
        text = scan.take(source)
        if text:
            yield CallArguments(text)
        if source.ended:
            scan.end()
        if scan.state is not Reading.OPEN:
            return scan.state is Reading.COMPLETE
        yield None


def as_arguments(value: str) -> str:
    """A JSON value as a call's arguments: an object inside a string is taken out, null is an empty object."""
    try:
        decoded = decode_json(value)
        if decoded is None or decoded == "":
            return "{}"
        if isinstance(decoded, str) and isinstance(decode_json(decoded), dict):
            return decoded
    except ValueError:
        pass  # the string was meant as a string
    return value


def named_call(source: Source, name: str, call_id: str | None = None) -> Steps[None]:
    """A call whose name is known, with the arguments that follow, if any do."""
    source.commit()
    yield CallBegan(name, call_id)
    yield from skip_spaces(source)
    complete = False
    if (yield from next_character(source)) in _ARGUMENT_STARTS:
        complete = yield from copy_arguments(source)
    yield from end_call(source, complete)


def end_call(source: Source, complete: bool = True) -> Steps[None]:
    """The end of a call, unless the length limit cut it off; half a marker may be left then, which is dropped."""
    if complete or not source.is_cut_off:
        yield CallEnded()
    else:
        source.take(len(source.rest))
