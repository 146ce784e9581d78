"""Calls that are written with tags, each parameter's value as plain text: Qwen3-Coder, GLM 4.5 and later, MiniMax M2.

The tools' schemas say what a value is (`tools.value_as_json`); text that can only be a string is passed on as it
comes. A closing tag inside a value is told from the value's end by what follows it: the next parameter or the
call's end.
"""

from collections.abc import Callable

import msgspec

from api_server.parsers.calls_in_text import text_with_calls
from api_server.parsers.events import CallArguments, CallBegan, Event
from api_server.parsers.json_calls import json_calls
from api_server.parsers.json_text import end_call, json_escaped
from api_server.parsers.source import (
    NAME,
    Markers,
    Source,
    Steps,
    accept,
    accept_after_spaces,
    collect_until,
    copy_until,
    next_character,
    skip_spaces,
    take_run,
)
from api_server.parsers.tools import STRING, Tools, Types, value_as_json


class Tags(msgspec.Struct, frozen=True):
    """How one format writes a call."""

    open: str
    """Begins a group of calls."""
    close: str
    function: str
    """In front of a function's name; empty when the name follows `open`."""
    name_end: str
    function_close: str
    """Empty when `close` ends the call as well."""
    parameter: str
    """In front of a parameter's name."""
    key_end: str
    value_close: str
    value: str = ""
    """In front of a value, when it does not follow `key_end` at once."""
    is_padded: bool = False
    """Whether a value stands on lines of its own."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that a call may begin with. Models forget the outer one."""
        return (self.open, self.function) if self.function else (self.open,)

    @property
    def all(self) -> tuple[str, ...]:
        """All its markers."""
        parts = (self.open, self.close, self.function, self.function_close, self.parameter, self.key_end, self.value)
        return tuple(tag for tag in (*parts, self.value_close) if tag)


QWEN3_CODER = Tags(
    "<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "</parameter>", is_padded=True
)
GLM = Tags(
    "<tool_call>", "</tool_call>", "", "", "", "<arg_key>", "</arg_key>", "</arg_value>", value="<arg_value>"
)  # fmt: skip
MINIMAX_M2 = Tags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    '">',
    "</invoke>",
    '<parameter name="',
    '">',
    "</parameter>",
)


class TaggedGrammar:
    """A grammar for one set of tags."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._starts = Markers(*tags.starts)
        self._ends = Markers(*(tag for tag in (tags.close, tags.function_close) if tag))
        self._inside = Markers(tags.parameter, *self._ends.all)
        """What follows a function's name, and each value."""
        self._key_end = Markers(tags.key_end)
        self._value_close = Markers(tags.value_close)

    def __call__(self, source: Source, tools: Tools) -> Steps[None]:
        """The whole answer."""
        return text_with_calls(source, self._starts, self._ends, lambda at, start: self._read(at, start, tools))

    def _read(self, source: Source, start: str, tools: Tools) -> Steps[bool]:
        tags = self._tags
        if start == tags.open:
            yield from skip_spaces(source)
            if (yield from next_character(source)) == "{":  # a model that was taught more than one format
                return (yield from json_calls(source))
            if tags.function and (yield from accept(source, Markers(tags.function))) is None:
                return False
        return (yield from self._call(source, tools))

    def _call(self, source: Source, tools: Tools) -> Steps[bool]:
        name = yield from take_run(source, NAME)
        if not name or (self._tags.name_end and (yield from accept(source, Markers(self._tags.name_end))) is None):
            return False
        yield from skip_spaces(source)
        inside = yield from accept(source, self._inside)
        if inside is None:
            return False
        source.commit()
        yield CallBegan(name)
        complete = yield from self._parameters(source, inside, lambda key: tools.types(name, key))
        yield from end_call(source, complete)
        return True

    def _parameters(self, source: Source, inside: str | None, types: Callable[[str], Types]) -> Steps[bool]:
        """From behind the tag `inside` to the call's end. Whether the call is whole."""
        before = "{"
        while inside == self._tags.parameter:
            key, end = yield from collect_until(source, self._key_end)
            if end is None:
                break
            if self._tags.value:
                yield from accept_after_spaces(source, Markers(self._tags.value))
            yield CallArguments(f'{before}"{json_escaped(key.strip())}": ')
            before = ", "
            inside = yield from self._value(source, types(key.strip()))
        if source.is_cut_off and inside not in self._ends.all:
            return False
        yield CallArguments("{}" if before == "{" else "}")
        return True

    def _value(self, source: Source, types: Types) -> Steps[str | None]:
        """One value; returns the tag behind it, None at the end of the text."""
        text = _ValueText(types, self._tags.is_padded)
        while True:
            close = yield from copy_until(source, self._value_close, text.push)
            if close is None:
                yield from text.end(source.is_cut_off)
                return None
            spaces = yield from skip_spaces(source)
            inside = yield from accept(source, self._inside)
            if inside is not None or source.ran_out:
                yield from text.end(False)
                return inside
            yield from text.push(close + spaces)


class _ValueText:
    """Owner of one value: passed on piece by piece when it can only be a string, else when it is whole."""

    def __init__(self, types: Types, is_padded: bool) -> None:
        self._types = types
        self._is_padded = is_padded
        self._parts: list[str] = []
        """Not passed on yet."""
        self._begun = False
        self._quoted = False

    def push(self, text: str) -> list[Event]:
        if self._is_padded and not self._begun:
            text = text.removeprefix("\n")
        self._begun = True
        self._parts.append(text)
        return self._flush(keep_break=self._is_padded) if self._types == STRING else []

    def end(self, is_cut_off: bool) -> list[Event]:
        text = "".join(self._parts)
        if self._is_padded and not is_cut_off:
            text = text.removesuffix("\n")
        if self._types != STRING:
            return [CallArguments(text if is_cut_off else value_as_json(text, self._types))]
        self._parts = [text]
        return [*self._flush(keep_break=False), *([] if is_cut_off else [CallArguments('"')])]

    def _flush(self, keep_break: bool) -> list[Event]:
        text = "".join(self._parts)
        held = "\n" if keep_break and text.endswith("\n") else ""
        self._parts = [held]
        quote = "" if self._quoted else '"'
        self._quoted = True
        return [CallArguments(quote + json_escaped(text.removesuffix(held)))]
