"""The parser of one answer: thoughts first, then calls in what is left; calls numbered."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from api_server.parsers.catalog import THINK_MARKERS, TOOL_FORMATS, ToolFormat
from api_server.parsers.events import CallArguments, CallBegan, CallEnded, Content, Event, append_joined
from api_server.parsers.harmony import MARKERS as HARMONY_MARKERS
from api_server.parsers.harmony import harmony
from api_server.parsers.names import NONE, ParserNames
from api_server.parsers.source import StreamParser
from api_server.parsers.thoughts import ThinkGrammar
from api_server.parsers.tools import Tools


class AnswerGrammar(msgspec.Struct, frozen=True):
    """What is to be taken apart in the answers of one request."""

    names: ParserNames = NONE
    """Chosen: not "auto"."""
    tools: Tools | None = None
    """None: calls are not looked for."""
    thoughts_are_open: bool = False
    """By the prompt."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that must reach the parser also where special tokens are left out of texts."""
        think = THINK_MARKERS.get(self.names.reasoning)
        call = self.tool_format
        harmony_markers = HARMONY_MARKERS if self.is_harmony else ()
        return harmony_markers + (think.all if think else ()) + (call.markers if call else ())

    @property
    def is_harmony(self) -> bool:
        """Whether one grammar does it all."""
        return self.names.reasoning == "harmony" or (self.names.tools == "harmony" and self.tools is not None)

    @property
    def tool_format(self) -> ToolFormat | None:
        """How calls are written, if they are looked for."""
        return None if self.tools is None else TOOL_FORMATS.get(self.names.tools)

    @property
    def has_short_ids(self) -> bool:
        """See ToolFormat."""
        return self.tool_format is not None and self.tool_format.has_short_ids

    def stages(self) -> list[StreamParser]:
        """Parsers for one answer; each gets the content that the one before it found."""
        if self.is_harmony:
            return [StreamParser(lambda source: harmony(source, self.tools is not None))]
        stages = []
        think = THINK_MARKERS.get(self.names.reasoning)
        if think is not None:
            starts = self.tool_format.starts if self.tool_format else ()
            stages.append(StreamParser(ThinkGrammar(think, self.thoughts_are_open, starts, self._has_call)))
        return [*stages, *self._tool_stage()]

    def _tool_stage(self) -> list[StreamParser]:
        call, tools = self.tool_format, self.tools
        if call is None or tools is None:
            return []
        return [StreamParser(lambda source: call.grammar(source, tools))]

    def _has_call(self, text: str) -> bool:
        found = [event for stage in self._tool_stage() for event in (*stage.feed(text), *stage.finish(False))]
        return any(isinstance(event, CallBegan) for event in found)


WHOLE_TEXT = AnswerGrammar()
"""All of an answer is content."""


class AnswerParser:
    """Owner of what is known of one answer."""

    def __init__(self, grammar: AnswerGrammar, new_call_id: Callable[[], str]) -> None:
        self._stages = grammar.stages()
        self._new_call_id = new_call_id
        self.num_calls = 0
        """Calls that have begun."""
        self._call_ids: set[str] = set()
        self._has_arguments = False

    def feed(self, text: str) -> list[Event]:
        """What is certain with this text; calls have ids, pieces are joined."""
        return self._tidy(_through(self._stages, [Content(text)]) if text else [])

    def finish(self, is_cut_off: bool) -> list[Event]:
        """What is left at the end of the text."""
        events: list[Event] = []
        for index, stage in enumerate(self._stages):
            events += _through(self._stages[index + 1 :], stage.finish(is_cut_off))
        return self._tidy(events)

    def _tidy(self, events: Iterable[Event]) -> list[Event]:
        tidy: list[Event] = []
        for event in events:
            if isinstance(event, CallBegan):
                event = self._begin(event)
            elif isinstance(event, CallArguments):
                event = self._numbered(event.text)
            elif isinstance(event, CallEnded) and not self._has_arguments:
                tidy.append(self._numbered("{}"))
            append_joined(tidy, event)
        return tidy

    def _numbered(self, text: str) -> CallArguments:
        self._has_arguments = self._has_arguments or bool(text)
        return CallArguments(text, self.num_calls - 1)

    def _begin(self, call: CallBegan) -> CallBegan:
        self.num_calls += 1
        self._has_arguments = False
        call_id = call.call_id if call.call_id and call.call_id not in self._call_ids else self._new_call_id()
        self._call_ids.add(call_id)
        return CallBegan(call.name, call_id, self.num_calls - 1)


def _through(stages: Sequence[StreamParser], events: list[Event]) -> list[Event]:
    for stage in stages:
        events = [
            found for event in events for found in (stage.feed(event.text) if isinstance(event, Content) else [event])
        ]
    return events
