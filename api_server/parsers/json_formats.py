"""Formats whose calls are JSON objects: what stands around them."""

import msgspec

from api_server.parsers.calls_in_text import calls_at_start, text_with_calls
from api_server.parsers.json_calls import json_calls
from api_server.parsers.source import Markers, Source, Steps, accept, accept_after_spaces, skip_spaces
from api_server.parsers.tools import Tools

_FENCE, _FENCE_END = Markers("```json", "```"), Markers("```")


class JsonMarkers(msgspec.Struct, frozen=True):
    """How one format marks its calls."""

    starts: tuple[str, ...]
    ends: tuple[str, ...] = ()
    at_start: bool = False
    """Whether an answer may also be nothing but calls, without a marker. Then only offered functions count."""

    @property
    def all(self) -> tuple[str, ...]:
        """All its markers."""
        return self.starts + self.ends


# Models close one brace too many now and then; it is left out with the marker.
HERMES = JsonMarkers(("<tool_call>",), ("</tool_call>", "}</tool_call>", "}\n</tool_call>"))
LLAMA3 = JsonMarkers(("<|python_tag|>", "<|python_start|>"), ("<|python_end|>",), at_start=True)
GRANITE = JsonMarkers(("<|tool_call|>", "<function_call>", "<tool_call>"), ("</tool_call>",))
PHI4 = JsonMarkers(("<|tool_call|>", "functools"), ("<|/tool_call|>",))
XLAM = JsonMarkers(("<tool_call>", "[TOOL_CALLS]"), ("</tool_call>",), at_start=True)


class JsonGrammar:
    """A grammar for one set of markers."""

    def __init__(self, markers: JsonMarkers) -> None:
        self._starts = Markers(*markers.starts)
        self._ends = Markers(*markers.ends)
        self._at_start = markers.at_start

    def __call__(self, source: Source, tools: Tools) -> Steps[None]:
        """The whole answer."""
        found = False
        if self._at_start:
            found = yield from calls_at_start(source, lambda at: _bare_calls(at, tools))
        yield from text_with_calls(source, self._starts, self._ends, lambda at, start: json_calls(at), found)


def _bare_calls(source: Source, tools: Tools) -> Steps[bool]:
    """Calls without a marker, perhaps as a block of code."""
    is_fenced = (yield from accept(source, _FENCE)) is not None
    yield from skip_spaces(source)
    found = yield from json_calls(source, tools.has)
    if found and is_fenced:
        yield from accept_after_spaces(source, _FENCE_END)
    return found
