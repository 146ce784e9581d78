"""The completion object, whole and in chunks (OpenAI API reference, "The completion object")."""

import msgspec
from msgspec import UNSET, UnsetType

from api_server.answer_format import Usage, WholeChoice
from api_server.choice_text import FinishWord
from api_server.choices import ChoiceDelta
from api_server.sse import DONE, event


class _Choice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: FinishWord | None = None
    stop_reason: str | int | None = None
    logprobs: None = None


class _Completion(msgspec.Struct, frozen=True, tag_field="object", tag="text_completion"):
    id: str
    created: int
    model: str
    choices: list[_Choice]
    usage: Usage | UnsetType | None


_encoder = msgspec.json.Encoder()


class CompletionFormat:
    """Writes one completion."""

    def __init__(self, answer_id: str, created: int, model: str, with_usage: bool) -> None:
        """`created` is Unix time in seconds; `with_usage` adds the usage chunk, and `usage: null` to the others."""
        self._id = answer_id
        self._created = created
        self._model = model
        self._with_usage = with_usage

    def opening(self) -> bytes:
        return b""

    def delta(self, delta: ChoiceDelta) -> bytes:
        events = b""
        if delta.delta.text:
            events += self._event(_Choice(delta.index, delta.delta.text))
        finish = delta.delta.finish
        if finish is not None:  # a chunk of its own, as in chat
            events += self._event(_Choice(delta.index, "", finish.reason, finish.stop_reason))
        return events

    def closing(self, usage: Usage) -> bytes:
        return event(self._encode([], usage)) + DONE if self._with_usage else DONE

    def whole(self, choices: list[WholeChoice], usage: Usage) -> bytes:
        written = [
            _Choice(index, choice.text, choice.finish.reason, choice.finish.stop_reason)
            for index, choice in enumerate(choices)
        ]
        return self._encode(written, usage)

    def _event(self, choice: _Choice) -> bytes:
        return event(self._encode([choice], None if self._with_usage else UNSET))

    def _encode(self, choices: list[_Choice], usage: Usage | UnsetType | None) -> bytes:
        return _encoder.encode(_Completion(self._id, self._created, self._model, choices, usage))
