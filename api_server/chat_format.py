"""The chat completion object and its chunks (OpenAI API reference, "Chat completion object", "chunk object")."""

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from api_server.answer_format import Usage, WholeChoice
from api_server.choice_text import FinishWord, content_of
from api_server.choices import ChoiceDelta
from api_server.parsers.events import CallArguments, CallBegan, CallEnded, Content, Event, Reasoning
from api_server.sse import DONE, event


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call, or in a chunk a piece of one: id, type and name come with the first piece alone."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: _Function


class _Message(msgspec.Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _Choice(msgspec.Struct, frozen=True):
    index: int
    message: _Message
    finish_reason: FinishWord
    stop_reason: str | int | None
    logprobs: None = None


class _Answer(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion"):
    id: str
    created: int
    model: str
    choices: list[_Choice]
    usage: Usage


class _Delta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: _Delta
    finish_reason: FinishWord | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class _Chunk(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion.chunk"):
    id: str
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: Usage | UnsetType | None


_encoder = msgspec.json.Encoder()


class ChatFormat:
    """Writes one chat answer."""

    def __init__(
        self, answer_id: str, created: int, model: str, n: int, with_usage: bool, with_reasoning: bool = True
    ) -> None:
        """`created` is Unix time in seconds; `with_usage` adds the usage chunk, and `usage: null` to the others.

        Without `with_reasoning` thoughts are left out.
        """
        self._id = answer_id
        self._created = created
        self._model = model
        self._n = n
        self._with_usage = with_usage
        self._with_reasoning = with_reasoning

    def opening(self) -> bytes:
        return b"".join(self._event(_ChunkChoice(index, _Delta("assistant", ""))) for index in range(self._n))

    def delta(self, delta: ChoiceDelta) -> bytes:
        events = b""
        for found in delta.delta.events:
            if self._with_reasoning or not isinstance(found, Reasoning):
                events += self._event(_ChunkChoice(delta.index, _delta(found)))
        finish = delta.delta.finish
        if finish is not None:  # a chunk of its own: some clients drop the text of the finishing chunk
            events += self._event(_ChunkChoice(delta.index, _Delta(), finish.reason, finish.stop_reason))
        return events

    def closing(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return event(_encoder.encode(_Chunk(self._id, self._created, self._model, [], usage))) + DONE

    def whole(self, choices: list[WholeChoice], usage: Usage) -> bytes:
        written = [
            _Choice(
                index, _message(choice.events, self._with_reasoning), choice.finish.reason, choice.finish.stop_reason
            )
            for index, choice in enumerate(choices)
        ]
        return _encoder.encode(_Answer(self._id, self._created, self._model, written, usage))

    def _event(self, choice: _ChunkChoice) -> bytes:
        usage = None if self._with_usage else UNSET
        return event(_encoder.encode(_Chunk(self._id, self._created, self._model, [choice], usage)))


def _delta(event: Event) -> _Delta:
    match event:
        case Content(text):
            return _Delta(content=text)
        case Reasoning(text):
            return _Delta(reasoning_content=text, reasoning=text)
        case CallBegan(name, call_id, index):
            assert call_id is not None
            function = _Function(name=name, arguments="")
            return _Delta(tool_calls=[_Call(index=index, id=call_id, type="function", function=function)])
        case CallArguments(text, index):
            return _Delta(tool_calls=[_Call(index=index, function=_Function(arguments=text))])
        case CallEnded():
            raise AssertionError("calls come without their ends")
        case _:
            assert_never(event)


def _message(events: Sequence[Event], with_reasoning: bool) -> _Message:
    """Content is null where there is none beside thoughts or calls, as with OpenAI."""
    content = content_of(events)
    thoughts = "".join(event.text for event in events if isinstance(event, Reasoning))
    reasoning = thoughts if thoughts and with_reasoning else UNSET
    calls = _whole_calls(events)
    return _Message(
        None if not content and (thoughts or calls) else content,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )


def _whole_calls(events: Sequence[Event]) -> list[_Call]:
    pieces: dict[int, list[str]] = {}
    for found in events:
        if isinstance(found, CallArguments):
            pieces.setdefault(found.index, []).append(found.text)
    return [
        _Call(
            id=found.call_id or UNSET,
            type="function",
            function=_Function(name=found.name, arguments="".join(pieces.get(found.index, []))),
        )
        for found in events
        if isinstance(found, CallBegan)
    ]
