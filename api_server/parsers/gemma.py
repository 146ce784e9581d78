"""Calls of FunctionGemma and Gemma 4: call:NAME{key:value,...} with bare keys, and strings between marks."""

import re

import msgspec

from api_server.parsers.calls_in_text import text_with_calls
from api_server.parsers.events import CallArguments, CallBegan
from api_server.parsers.json_text import decode_json, end_call, json_escaped
from api_server.parsers.source import NAME, Markers, Source, Steps, accept, copy_until, skip_spaces, take_run
from api_server.parsers.tools import Tools

MAX_DEPTH = 64
"""Deepest nesting of a value; more is no call."""
_CALL, _OBJECT, _OBJECT_END = Markers("call:"), Markers("{"), Markers("}")
_LIST, _LIST_END, _COMMA, _COLON = Markers("["), Markers("]"), Markers(","), Markers(":")
_KEY = re.compile(r"[^:,{}\[\]<]*")
_SCALAR = re.compile(r"[^,{}\[\]<]*")


class GemmaMarkers(msgspec.Struct, frozen=True):
    """What one model writes around a call and around a string."""

    start: str
    end: str
    quote: str

    @property
    def all(self) -> tuple[str, ...]:
        """All its markers."""
        return (self.start, self.end, self.quote)


FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaGrammar:
    """A grammar for one set of markers."""

    def __init__(self, markers: GemmaMarkers) -> None:
        self._start = Markers(markers.start)
        self._end = Markers(markers.end)
        self._quote = Markers(markers.quote)

    def __call__(self, source: Source, tools: Tools) -> Steps[None]:
        """The whole answer."""
        return text_with_calls(source, self._start, self._end, lambda at, start: self._call(at))

    def _call(self, source: Source) -> Steps[bool]:
        yield from skip_spaces(source)
        if (yield from accept(source, _CALL)) is None:
            return False
        name = yield from take_run(source, NAME)
        if not name or (yield from accept(source, _OBJECT)) is None:
            return False
        source.commit()
        yield CallBegan(name)
        complete = yield from self._object(source, 1)
        yield from end_call(source, complete)
        return True

    def _object(self, source: Source, depth: int) -> Steps[bool]:
        """From behind the brace. Whether it is whole."""
        before = "{"
        while True:
            yield from skip_spaces(source)
            if (yield from accept(source, _OBJECT_END)) is not None:
                yield CallArguments("{}" if before == "{" else "}")
                return True
            key = yield from self._key(source)
            if not key or (yield from accept(source, _COLON)) is None:
                return False
            yield CallArguments(f'{before}"{json_escaped(key)}": ')
            before = ", "
            if not (yield from self._value(source, depth)):
                return False

    def _key(self, source: Source) -> Steps[str]:
        if (yield from accept(source, self._quote)) is None:
            return (yield from take_run(source, _KEY)).strip()
        key = yield from take_run(source, _KEY)
        yield from accept(source, self._quote)
        return key

    def _value(self, source: Source, depth: int) -> Steps[bool]:
        """One value and the comma behind it. Whether it is whole."""
        yield from skip_spaces(source)
        if (yield from accept(source, self._quote)) is not None:
            complete = yield from self._string(source)
        elif depth < MAX_DEPTH and (yield from accept(source, _OBJECT)) is not None:
            complete = yield from self._object(source, depth + 1)
        elif depth < MAX_DEPTH and (yield from accept(source, _LIST)) is not None:
            complete = yield from self._list(source, depth + 1)
        else:
            complete = yield from _scalar(source)
        yield from skip_spaces(source)
        yield from accept(source, _COMMA)
        return complete

    def _list(self, source: Source, depth: int) -> Steps[bool]:
        yield CallArguments("[")
        before = ""
        while True:
            yield from skip_spaces(source)
            if (yield from accept(source, _LIST_END)) is not None:
                yield CallArguments("]")
                return True
            if source.ran_out:
                return False
            yield CallArguments(before)
            before = ", "
            if not (yield from self._value(source, depth)):
                return False

    def _string(self, source: Source) -> Steps[bool]:
        yield CallArguments('"')
        end = yield from copy_until(source, self._quote, lambda text: (CallArguments(json_escaped(text)),))
        if end is not None:
            yield CallArguments('"')
        return end is not None


def _scalar(source: Source) -> Steps[bool]:
    """A number, true, false or null; a string where it is neither."""
    text = (yield from take_run(source, _SCALAR)).strip()
    if not text:
        return False
    try:
        decode_json(text)
    except ValueError:
        text = f'"{json_escaped(text)}"'
    yield CallArguments(text)
    return True
