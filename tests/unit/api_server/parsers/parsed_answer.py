"""What the parser tests share: an answer put together from a parser's events, and tools to call."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from api_server.parsers.answer_parser import AnswerGrammar, AnswerParser
from api_server.parsers.events import CallArguments, CallBegan, CallEnded, Content, Event, Reasoning, append_joined
from api_server.parsers.names import ParserNames
from api_server.parsers.tools import Tools

PARAMETERS: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "ratio": {"type": "number"},
    "exact": {"type": "boolean"},
    "options": {"type": "object"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "either": {"type": ["string", "integer"]},
    "anything": {},
    "referred": {"$ref": "#/$defs/Count"},
    "chosen": {"enum": [1, 2, 3]},
}
WEATHER = {"type": "object", "properties": PARAMETERS, "$defs": {"Count": {"type": "integer"}}}
TOOLS = Tools({"get_weather": WEATHER, "now": {}, "run": {"properties": {"cmd": {"type": "string"}}}})


class Answer(msgspec.Struct, frozen=True):
    """A parsed answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each call."""


def make_parser(
    tools: Any = "none", reasoning: Any = "none", opened: bool = False, offered: Tools | None = TOOLS
) -> AnswerParser:
    """A parser whose calls are numbered c1, c2, ..."""
    numbers = iter(range(1, 1000))
    grammar = AnswerGrammar(ParserNames(tools, reasoning), offered, opened)
    return AnswerParser(grammar, lambda: f"c{next(numbers)}")


def parse(parser: AnswerParser, pieces: Iterable[str], is_cut_off: bool = False) -> list[Event]:
    """The joined events of a text that comes in these pieces."""
    joined: list[Event] = []
    for piece in pieces:
        for event in parser.feed(piece):
            append_joined(joined, event)
    for event in parser.finish(is_cut_off):
        append_joined(joined, event)
    return joined


def put_together(events: Sequence[Event]) -> Answer:
    """Checks the order of the events on the way."""
    answer = Answer()
    in_call = False
    for event in events:
        match event:
            case Content(text):
                assert not in_call
                answer = msgspec.structs.replace(answer, content=answer.content + text)
            case Reasoning(text):
                assert not in_call
                answer = msgspec.structs.replace(answer, reasoning=answer.reasoning + text)
            case CallBegan(name, call_id):
                assert call_id and not in_call
                in_call = True
                answer = msgspec.structs.replace(answer, calls=(*answer.calls, (name, "")))
            case CallArguments(text):
                assert in_call
                *earlier, (name, arguments) = answer.calls
                answer = msgspec.structs.replace(answer, calls=(*earlier, (name, arguments + text)))
            case CallEnded():
                assert in_call
                in_call = False
    return answer


def answer_of(parser: AnswerParser, text: str, is_cut_off: bool = False) -> Answer:
    """The answer in one piece."""
    return put_together(parse(parser, [text], is_cut_off))


def decoded(answer: Answer) -> list[tuple[str, Any]]:
    """The calls with their arguments decoded; fails where they are no JSON."""
    return [(name, msgspec.json.decode(arguments)) for name, arguments in answer.calls]
