"""Single tokens in an answer: log probabilities in the shapes of chat and of completions, and ids.

OpenAI API reference, "logprobs" of the chat completion object and of the completion object. What is not UTF-8 by itself
is spelled with U+FFFD in chat, beside its exact `bytes`, and as `bytes:\\xNN` in completions, where tokens are keys.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from api_server.token_entries import TokenChance, TokenEntry


class TokenTelling(msgspec.Struct, frozen=True):
    """What a caller wants to hear of single tokens."""

    logprobs: bool = False
    token_ids: bool = False
    """`return_token_ids`: of prompts and choices."""
    names_are_ids: bool = False
    """`return_tokens_as_token_ids`: spelled "token_id:N"."""
    prompt_logprobs: bool = False
    """vLLM's `prompt_logprobs`, beside those that an echoed prompt has."""

    @property
    def needs_entries(self) -> bool:
        """Whether choices must keep their tokens."""
        return self.logprobs or self.token_ids

    def chat_logprobs(self, entries: Sequence[TokenEntry]) -> "ChatLogprobs | None":
        """For a chunk or a whole choice; None when it has nothing to tell."""
        if not self.logprobs:
            return None
        return ChatLogprobs([self._chat_token(entry) for entry in entries])

    def completion_logprobs(
        self, entries: Sequence[TokenEntry], shift: int = 0, prompt: Sequence[TokenEntry] = ()
    ) -> "CompletionLogprobs | None":
        """The same for completions, behind those of an echoed prompt; offsets of `entries` count from `shift`."""
        if not self.logprobs:
            return None
        known = (*prompt[1:], *entries)
        first = prompt[:1]
        return CompletionLogprobs(
            [entry.offset for entry in prompt] + [shift + entry.offset for entry in entries],
            [None for _ in first] + [entry.token.logprob for entry in known],
            [self._name(entry.token) for entry in (*prompt, *entries)],
            [None for _ in first] + [self._alternatives(entry) for entry in known],
        )

    def of_prompt(self, entries: Sequence[TokenEntry]) -> "PromptLogprobs | UnsetType":
        """vLLM's shape: null for the first token, then what was likely and the token itself, by token id."""
        if not self.prompt_logprobs:
            return UNSET
        first: PromptLogprobs = [None for _ in entries[:1]]
        return first + [_by_id(entry) for entry in entries[1:]]

    def ids(self, entries: Sequence[TokenEntry]) -> list[int] | UnsetType:
        """Of the choice's new tokens, where they are wanted."""
        return [entry.token.token_id for entry in entries] if self.token_ids else UNSET

    def _chat_token(self, entry: TokenEntry) -> "ChatTokenLogprob":
        tops = [ChatTopLogprob(self._chat_name(top), top.logprob, list(top.spelling)) for top in entry.tops]
        return ChatTokenLogprob(self._chat_name(entry.token), entry.token.logprob, list(entry.token.spelling), tops)

    def _alternatives(self, entry: TokenEntry) -> dict[str, float]:
        """The likeliest first, the token itself added; of those that are spelled alike the likeliest counts."""
        named: dict[str, float] = {}
        for top in (*entry.tops, entry.token):
            named.setdefault(self._name(top), top.logprob)
        return named

    def _chat_name(self, token: TokenChance) -> str:
        return f"token_id:{token.token_id}" if self.names_are_ids else token.spelling.decode(errors="replace")

    def _name(self, token: TokenChance) -> str:
        if self.names_are_ids:
            return f"token_id:{token.token_id}"
        try:
            return token.spelling.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.spelling)


def _by_id(entry: TokenEntry) -> "dict[str, PromptLogprob]":
    chances = [*enumerate(entry.tops, start=1), (entry.rank, entry.token)]
    return {
        str(token.token_id): PromptLogprob(token.logprob, rank, token.spelling.decode(errors="replace"))
        for rank, token in chances
    }


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token of a prompt, or one that was likely in its place."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatTopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """One generated token."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of chat."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of completions: parallel lists, an entry a token."""

    text_offset: list[int]
    """Characters of `text` before the token's own."""
    token_logprobs: list[float | None]
    """null for the first token of an echoed prompt, which nothing predicts."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
