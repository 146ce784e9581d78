"""How an answer is written down: what the formats of chat and completions have in common."""

from typing import Protocol

import msgspec

from api_server.choice_text import Finish, content_of
from api_server.choices import ChoiceDelta
from api_server.parsers.events import Event
from api_server.token_entries import TokenEntry


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`usage`; tokens of all prompts and of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def make_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """The counts with their sum."""
    details = PromptTokensDetails(cached_tokens)
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)


class WholeChoice(msgspec.Struct, frozen=True):
    """One finished choice."""

    events: list[Event]
    """Those of all its deltas."""
    finish: Finish
    tokens: list[TokenEntry] = []
    """Of a choice that keeps them."""
    prompt: list[TokenEntry] = []
    """Of its prompt, when log probabilities of that were wanted."""

    @property
    def text(self) -> str:
        """The content alone."""
        return content_of(self.events)


class AnswerFormat(Protocol):
    """Writes one answer, as events or in one piece. The events, in order: opening, deltas, closing."""

    def opening(self) -> bytes:
        """Events that can be sent before the first token."""

    def delta(self, delta: ChoiceDelta, usage: Usage | None = None) -> bytes:
        """Events for new text and for a choice's end; none for a delta that brings neither.

        `usage` is that so far, for a caller that wants it with each of them.
        """

    def closing(self, usage: Usage) -> bytes:
        """Events after the last choice has ended."""

    def whole(self, choices: list[WholeChoice], usage: Usage) -> bytes:
        """The JSON body of an answer that is not streamed."""
