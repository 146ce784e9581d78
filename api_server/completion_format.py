"""The completion object, whole and in chunks (OpenAI API reference, "The completion object")."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from api_server.answer_format import Usage, WholeChoice
from api_server.choice_text import FinishWord
from api_server.choices import ChoiceDelta
from api_server.logprob_format import CompletionLogprobs, PromptLogprobs, TokenTelling
from api_server.sse import DONE, event
from api_server.token_entries import TokenEntry


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text, or in a chunk a piece of it."""

    index: int
    text: str
    finish_reason: FinishWord | None = None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, tag_field="object", tag="text_completion"):
    """The whole answer, and each event of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None


_encoder = msgspec.json.Encoder()


class Echo(msgspec.Struct, frozen=True):
    """What a choice tells of its prompt."""

    text: str = ""
    token_ids: list[int] | UnsetType = UNSET


NO_ECHO = Echo()
NO_TOKENS = TokenTelling()


class CompletionFormat:
    """Writes one completion."""

    def __init__(
        self,
        answer_id: str,
        created: int,
        model: str,
        with_usage: bool,
        tokens: TokenTelling = NO_TOKENS,
        echoes: Sequence[Echo] = (),
    ) -> None:
        """`created` is Unix time in seconds; `with_usage` adds the usage chunk, and `usage: null` to the others.

        `echoes` are what each choice begins with; () for nothing.
        """
        self._id = answer_id
        self._created = created
        self._model = model
        self._with_usage = with_usage
        self._tokens = tokens
        self._echoes = echoes
        self._echoed: set[int] = set()
        """Choices whose prompt was told."""

    def opening(self) -> bytes:
        if self._tokens.logprobs:  # those of the prompt come with the first token
            return b""
        return b"".join(
            self._event(CompletionChoice(index, echo.text, prompt_token_ids=echo.token_ids), None)
            for index, echo in enumerate(self._echoes)
        )

    def delta(self, delta: ChoiceDelta, usage: Usage | None = None) -> bytes:
        events = b""
        if self._tokens.logprobs and self._echoes and delta.index not in self._echoed:
            self._echoed.add(delta.index)
            events += self._event(self._echo(delta.index, delta.prompt), usage)
        logprobs = self._logprobs(delta.index, delta.delta.tokens)
        ids = self._tokens.ids(delta.delta.tokens)
        if delta.delta.text:
            piece = CompletionChoice(delta.index, delta.delta.text, logprobs=logprobs, token_ids=ids)
            events += self._event(piece, usage)
            logprobs, ids = None, UNSET
        finish = delta.delta.finish
        if finish is not None:  # a chunk of its own, as in chat
            end = CompletionChoice(delta.index, "", finish.reason, finish.stop_reason, logprobs, ids)
            events += self._event(end, usage)
        return events

    def closing(self, usage: Usage) -> bytes:
        return event(self._encode([], usage)) + DONE if self._with_usage else DONE

    def whole(self, choices: list[WholeChoice], usage: Usage) -> bytes:
        return self._encode([self._whole(index, choice) for index, choice in enumerate(choices)], usage)

    def _whole(self, index: int, choice: WholeChoice) -> CompletionChoice:
        echo = self._echoes[index] if self._echoes else NO_ECHO
        return CompletionChoice(
            index,
            echo.text + choice.text,
            choice.finish.reason,
            choice.finish.stop_reason,
            self._logprobs(index, choice.tokens, () if self._tokens.prompt_logprobs else choice.prompt),
            self._tokens.ids(choice.tokens),
            echo.token_ids,
            self._tokens.of_prompt(choice.prompt),
        )

    def _echo(self, index: int, prompt: Sequence[TokenEntry]) -> CompletionChoice:
        echo = self._echoes[index]
        logprobs = self._tokens.completion_logprobs((), prompt=prompt)
        return CompletionChoice(index, echo.text, logprobs=logprobs, prompt_token_ids=echo.token_ids)

    def _logprobs(
        self, index: int, tokens: Sequence[TokenEntry], prompt: Sequence[TokenEntry] = ()
    ) -> CompletionLogprobs | None:
        shift = len(self._echoes[index].text) if self._echoes else 0
        return self._tokens.completion_logprobs(tokens, shift, prompt)

    def _event(self, choice: CompletionChoice, usage: Usage | None) -> bytes:
        return event(self._encode([choice], usage if usage is not None or self._with_usage else UNSET))

    def _encode(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> bytes:
        return _encoder.encode(Completion(self._id, self._created, self._model, choices, usage))
