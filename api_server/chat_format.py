"""The chat completion object and its chunks (OpenAI API reference, "Chat completion object", "chunk object")."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from api_server.answer_format import Usage, WholeChoice
from api_server.choice_text import FinishWord
from api_server.choices import ChoiceDelta
from api_server.sse import DONE, event


class _Message(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


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

    def __init__(self, answer_id: str, created: int, model: str, n: int, with_usage: bool) -> None:
        """`created` is Unix time in seconds; `with_usage` adds the usage chunk, and `usage: null` to the others."""
        self._id = answer_id
        self._created = created
        self._model = model
        self._n = n
        self._with_usage = with_usage

    def opening(self) -> bytes:
        return b"".join(self._event(_ChunkChoice(index, _Delta("assistant", ""))) for index in range(self._n))

    def delta(self, delta: ChoiceDelta) -> bytes:
        events = b""
        if delta.delta.text:
            events += self._event(_ChunkChoice(delta.index, _Delta(content=delta.delta.text)))
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
            _Choice(index, _Message(choice.text), choice.finish.reason, choice.finish.stop_reason)
            for index, choice in enumerate(choices)
        ]
        return _encoder.encode(_Answer(self._id, self._created, self._model, written, usage))

    def _event(self, choice: _ChunkChoice) -> bytes:
        usage = None if self._with_usage else UNSET
        return event(_encoder.encode(_Chunk(self._id, self._created, self._model, [choice], usage)))
