"""The chat completion object and its chunks (OpenAI API reference, "Chat completion object", "chunk object")."""

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from api_server.answer_format import Usage, WholeChoice
from api_server.choice_text import FinishWord, content_of
from api_server.choices import ChoiceDelta
from api_server.logprob_format import ChatLogprobs, PromptLogprobs, TokenTelling
from api_server.parsers.events import CallArguments, CallBegan, CallEnded, Content, Event, Reasoning
from api_server.sse import DONE, event


class AnswerFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments of a call, or in a chunk pieces of them."""

    name: str | UnsetType = UNSET
    arguments: str


class AnswerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, or in a chunk a piece of one: id, type and name come with the first piece alone."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: AnswerFunction


class AnswerMessage(msgspec.Struct, frozen=True):
    """The assistant's message."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: FinishWord
    stop_reason: str | int | None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion"):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class AnswerDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to an answer."""

    index: int
    delta: AnswerDelta
    finish_reason: FinishWord | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None
    prompt_token_ids: list[int] | UnsetType = UNSET


_encoder = msgspec.json.Encoder()
NO_TOKENS = TokenTelling()


class ChatFormat:
    """Writes one chat answer."""

    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        n: int,
        with_usage: bool,
        with_reasoning: bool = True,
        tokens: TokenTelling = NO_TOKENS,
        prompt_ids: Sequence[int] = (),
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
        self._tokens = tokens
        self._prompt_ids = list(prompt_ids) if tokens.token_ids else UNSET

    def opening(self) -> bytes:
        openings = [ChatChunkChoice(index, AnswerDelta("assistant", "")) for index in range(self._n)]
        return b"".join(self._event(choice, None, UNSET if choice.index else self._prompt_ids) for choice in openings)

    def delta(self, delta: ChoiceDelta, usage: Usage | None = None) -> bytes:
        new = delta.delta
        deltas = [_delta(found) for found in new.events if self._with_reasoning or not isinstance(found, Reasoning)]
        choices = [ChatChunkChoice(delta.index, each) for each in deltas]
        if new.finish is not None:  # a chunk of its own: some clients drop the text of the finishing chunk
            choices.append(ChatChunkChoice(delta.index, AnswerDelta(), new.finish.reason, new.finish.stop_reason))
        if new.tokens:  # with the first chunk; with one of their own where thoughts are left out
            first = choices.pop(0) if choices else ChatChunkChoice(delta.index, AnswerDelta())
            logprobs, ids = self._tokens.chat_logprobs(new.tokens), self._tokens.ids(new.tokens)
            choices.insert(0, replace(first, logprobs=logprobs, token_ids=ids))
        return b"".join([self._event(choice, usage) for choice in choices])

    def closing(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return event(_encoder.encode(ChatCompletionChunk(self._id, self._created, self._model, [], usage))) + DONE

    def whole(self, choices: list[WholeChoice], usage: Usage) -> bytes:
        written = [
            ChatChoice(
                index,
                _message(choice.events, self._with_reasoning),
                choice.finish.reason,
                choice.finish.stop_reason,
                self._tokens.chat_logprobs(choice.tokens),
                self._tokens.ids(choice.tokens),
            )
            for index, choice in enumerate(choices)
        ]
        scores = self._tokens.of_prompt(choices[0].prompt)
        answer = ChatCompletion(self._id, self._created, self._model, written, usage, self._prompt_ids, scores)
        return _encoder.encode(answer)

    def _event(self, choice: ChatChunkChoice, usage: Usage | None, prompt_ids: list[int] | UnsetType = UNSET) -> bytes:
        told = usage if usage is not None or self._with_usage else UNSET
        chunk = ChatCompletionChunk(self._id, self._created, self._model, [choice], told, prompt_ids)
        return event(_encoder.encode(chunk))


def _delta(event: Event) -> AnswerDelta:
    match event:
        case Content(text):
            return AnswerDelta(content=text)
        case Reasoning(text):
            return AnswerDelta(reasoning_content=text, reasoning=text)
        case CallBegan(name, call_id, index):
            assert call_id is not None
            function = AnswerFunction(name=name, arguments="")
            return AnswerDelta(tool_calls=[AnswerCall(index=index, id=call_id, type="function", function=function)])
        case CallArguments(text, index):
            return AnswerDelta(tool_calls=[AnswerCall(index=index, function=AnswerFunction(arguments=text))])
        case CallEnded():
            raise AssertionError("calls come without their ends")
        case _:
            assert_never(event)


def _message(events: Sequence[Event], with_reasoning: bool) -> AnswerMessage:
    """Content is null where there is none beside thoughts or calls, as with OpenAI."""
    content = content_of(events)
    thoughts = "".join(event.text for event in events if isinstance(event, Reasoning))
    reasoning = thoughts if thoughts and with_reasoning else UNSET
    calls = _whole_calls(events)
    return AnswerMessage(
        None if not content and (thoughts or calls) else content,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )


def _whole_calls(events: Sequence[Event]) -> list[AnswerCall]:
    pieces: dict[int, list[str]] = {}
    for found in events:
        if isinstance(found, CallArguments):
            pieces.setdefault(found.index, []).append(found.text)
    return [
        AnswerCall(
            id=found.call_id or UNSET,
            type="function",
            function=AnswerFunction(name=found.name, arguments="".join(pieces.get(found.index, []))),
        )
        for found in events
        if isinstance(found, CallBegan)
    ]
