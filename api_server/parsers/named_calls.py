"""Calls whose name stands outside the JSON of their arguments: DeepSeek V3 and V3.1, Kimi K2, Mistral."""

import re

from api_server.parsers.calls_in_text import text_with_calls
from api_server.parsers.json_calls import json_calls
from api_server.parsers.json_text import named_call
from api_server.parsers.source import (
    NAME,
    Markers,
    Source,
    Steps,
    accept,
    accept_after_spaces,
    next_character,
    skip_spaces,
    take_run,
)
from api_server.parsers.tools import Tools

DEEPSEEK_STARTS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
DEEPSEEK_ENDS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
KIMI_STARTS = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
KIMI_ENDS = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
MISTRAL_STARTS = ("[TOOL_CALLS]",)
MISTRAL_SEPARATORS = ("[CALL_ID]", "[ARGS]")

_FENCE, _FENCE_END = Markers("```json"), Markers("```")
_ID = re.compile(r"[\w.\-:]*")
_KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>[\w.\-]+):\d{1,9}")


def deepseek(source: Source, tools: Tools) -> Steps[None]:
    """NAME<sep>{...}, or, in V3 and R1, function<sep>NAME and the arguments as a block of code."""
    return text_with_calls(source, Markers(*DEEPSEEK_STARTS), Markers(*DEEPSEEK_ENDS), _deepseek_call)


def _deepseek_call(source: Source, start: str) -> Steps[bool]:
    if start == DEEPSEEK_STARTS[0]:
        yield from skip_spaces(source)
        if (yield from accept(source, Markers(DEEPSEEK_STARTS[1]))) is None:
            return False
    name = yield from _name(source)
    if not name or (yield from accept(source, Markers(DEEPSEEK_SEPARATOR))) is None:
        return False
    yield from skip_spaces(source)
    if name != "function" or (yield from next_character(source)) == "{":
        yield from named_call(source, name)
        return True
    name = yield from _name(source)
    yield from skip_spaces(source)
    is_fenced = (yield from accept(source, _FENCE)) is not None
    yield from skip_spaces(source)
    if not name or (yield from next_character(source)) != "{":
        return False
    yield from named_call(source, name)
    if is_fenced:
        yield from accept_after_spaces(source, _FENCE_END)
    return True


def kimi(source: Source, tools: Tools) -> Steps[None]:
    """functions.NAME:NUMBER<argument begin>{...}; what stands before the arguments is the call's id as well."""
    return text_with_calls(source, Markers(*KIMI_STARTS), Markers(*KIMI_ENDS), _kimi_call)


def _kimi_call(source: Source, start: str) -> Steps[bool]:
    if start == KIMI_STARTS[0]:
        yield from skip_spaces(source)
        if (yield from accept(source, Markers(KIMI_STARTS[1]))) is None:
            return False
    yield from skip_spaces(source)
    call_id = yield from take_run(source, _ID)
    yield from skip_spaces(source)
    if not call_id or (yield from accept(source, Markers(KIMI_SEPARATOR))) is None:
        return False
    match = _KIMI_ID.fullmatch(call_id)
    yield from named_call(source, match["name"] if match else call_id, call_id if match else None)
    return True


def mistral(source: Source, tools: Tools) -> Steps[None]:
    """An array of JSON calls, or, from version 11 of its tokenizer on, NAME[ARGS]{...} with a marker for each call."""
    return text_with_calls(source, Markers(*MISTRAL_STARTS), Markers(), _mistral_call)


def _mistral_call(source: Source, start: str) -> Steps[bool]:
    yield from skip_spaces(source)
    first = yield from next_character(source)
    if first in ("[", "{"):
        return (yield from json_calls(source))
    name = yield from _name(source)
    if not name:
        return False
    call_id = None
    if (yield from accept(source, Markers(MISTRAL_SEPARATORS[0]))) is not None:
        call_id = yield from take_run(source, _ID)
    has_separator = (yield from accept(source, Markers(MISTRAL_SEPARATORS[1]))) is not None
    yield from skip_spaces(source)
    if not has_separator and (yield from next_character(source)) != "{":
        return False
    yield from named_call(source, name, call_id)
    return True


def _name(source: Source) -> Steps[str]:
    yield from skip_spaces(source)
    name = yield from take_run(source, NAME)
    yield from skip_spaces(source)
    return name
