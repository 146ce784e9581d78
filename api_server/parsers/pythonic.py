"""Calls written as Python: [get_weather(city="Oslo", days=3), now()] (Llama 3.2 and 4, LFM 2).

A call is passed on when its closing parenthesis has come: its arguments are Python's, not JSON's.
"""

import ast
from types import EllipsisType
from typing import Any

import msgspec

from api_server.parsers.calls_in_text import calls_at_start, text_with_calls
from api_server.parsers.events import CallArguments, CallBegan, CallEnded
from api_server.parsers.json_calls import IsFunction, any_name
from api_server.parsers.source import (
    NAME,
    Markers,
    Source,
    Steps,
    accept,
    accept_after_spaces,
    skip_spaces,
    take_run,
)
from api_server.parsers.tools import Tools

STARTS = ("<|python_start|>", "<|tool_call_start|>")
ENDS = ("<|python_end|>", "<|tool_call_end|>")

_LIST, _LIST_END, _PARENTHESIS, _COMMA = Markers("["), Markers("]"), Markers("("), Markers(",")
_NAMED_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def pythonic(source: Source, tools: Tools) -> Steps[None]:
    """The whole answer. Without a marker, only functions that were offered count."""
    found = yield from calls_at_start(source, lambda at: _calls(at, tools.has))
    yield from text_with_calls(source, Markers(*STARTS), Markers(*ENDS), lambda at, start: _calls(at, any_name), found)


def _calls(source: Source, is_function: IsFunction) -> Steps[bool]:
    yield from skip_spaces(source)
    if (yield from accept(source, _LIST)) is None or not (yield from _call(source, is_function)):
        return False
    while True:
        source.mark()
        yield from skip_spaces(source)
        if (yield from accept(source, _COMMA)) is None or not (yield from _call(source, is_function)):
            source.give_up()
            break
    yield from accept_after_spaces(source, _LIST_END)
    return True


def _call(source: Source, is_function: IsFunction) -> Steps[bool]:
    yield from skip_spaces(source)
    name = yield from take_run(source, NAME)
    if not is_function(name) or (yield from accept(source, _PARENTHESIS)) is None:
        return False
    text = yield from _inside_parentheses(source)
    arguments = None if text is None else _arguments(text)
    if arguments is None:
        return False
    source.commit()
    yield CallBegan(name)
    yield CallArguments(arguments)
    yield CallEnded()
    return True


def _inside_parentheses(source: Source) -> Steps[str | None]:
    """Text up to the parenthesis that closes the call; None when it does not come."""
    scan = _PythonScan()
    parts = []
    while True:
        parts.append(source.take(scan.length(source.rest)))
        if scan.depth == 0:
            return "".join(parts)[:-1]
        if source.ended:
            return None
        yield None


class _PythonScan:
    """Owner of the place in a call's arguments: how many brackets are open, and in which string."""

    def __init__(self) -> None:
        self.depth = 1
        self._quote = ""
        self._is_escaped = False

    def length(self, text: str) -> int:
        """How much of the text belongs to the arguments, the closing parenthesis included."""
        for index, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                self._is_escaped = character == "\\"
                self._quote = "" if character == self._quote else self._quote
            elif character in "\"'":
                self._quote = character
            else:
                self.depth += _BRACKETS.get(character, 0)
            if self.depth == 0:
                return index + 1
        return len(text)


def _arguments(text: str) -> str | None:
    """The arguments as JSON; None when they are not keywords with literal values."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            return None
        values = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        return msgspec.json.encode(values).decode()
    except (SyntaxError, ValueError, TypeError, OverflowError, MemoryError, RecursionError):
        return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal; true, false and null count as such. Raises ValueError."""
    match node:
        case ast.Name(id=name) if name in _NAMED_CONSTANTS:
            return _NAMED_CONSTANTS[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {str(_literal(_key(key))): _literal(value) for key, value in zip(keys, values, strict=True)}
        case ast.Constant(value=bytes() | complex()) | ast.Constant(value=EllipsisType()):
            raise ValueError("not a value of JSON")
        case _:
            return ast.literal_eval(node)


def _key(key: ast.expr | None) -> ast.expr:
    if key is None:
        raise ValueError("unpacking is no literal")
    return key
