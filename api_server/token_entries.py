"""What is told of single tokens: ids, spelling, place in the text, log probabilities.

There is an entry for each generated token, also for the one that ended the choice and for those of thoughts and calls;
only tokens whose text a stop string cut off have none. An entry is held back as long as its text is, and comes with the
text, or with the end.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from api_server.detokenizer import Detokenizer
from protocol.logprobs import LOGPROB_FLOOR, TokenLogprobs


class TokenChance(NamedTuple):
    """A token and how likely it was."""

    token_id: int
    spelling: bytes
    """What it would have added to the text; not always UTF-8. Special tokens are spelled by their names."""
    logprob: float
    """Natural logarithm; from LOGPROB_FLOOR to 0."""


class TokenEntry(msgspec.Struct, frozen=True):
    """One generated token."""

    token: TokenChance
    """Its logprob is 0 where none was asked for."""
    tops: list[TokenChance]
    """The likeliest tokens at its place, as many as were asked for."""
    offset: int
    """Characters of text before its own."""
    rank: int = 0
    """1 for the likeliest; 0 where no log probability was asked for."""


class TokenTrail:
    """Owner of the entries of one choice that were not told yet."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._length = 0
        """Characters of text so far."""
        self._held: deque[TokenEntry] = deque()

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        """Detokenises the token and notes its entry; returns its text."""
        entry = self._entry(token_id, logprobs)
        text = self._detokenizer.push(token_id)
        self._held.append(entry)
        self._length += len(text)
        return text

    def end(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Notes the entry of a token that ends the choice without text."""
        self._held.append(self._entry(token_id, logprobs))

    def cut(self, characters: int) -> None:
        """So many characters at the end of the text are not part of it."""
        self._length -= characters
        while characters and self._held and self._held[-1].offset >= self._length:
            self._held.pop()

    def take(self, held_characters: int) -> list[TokenEntry]:
        """Entries to be told now, while so many characters at the end of the text are held back."""
        certain = self._length - held_characters
        taken = []
        while self._held and (not held_characters or self._held[0].offset < certain):
            taken.append(self._held.popleft())
        return taken

    def check_invariants(self) -> None:
        """Offsets ascend and stay within the text."""
        offsets = [entry.offset for entry in self._held]
        assert offsets == sorted(offsets)
        assert all(offset <= self._length for offset in offsets)

    def _entry(self, token_id: int, logprobs: TokenLogprobs | None) -> TokenEntry:
        if logprobs is None:
            return TokenEntry(self._chance(token_id, 0.0), [], self._length)
        tops = map(self._chance, logprobs.top_ids, logprobs.top_logprobs)
        return TokenEntry(self._chance(token_id, logprobs.logprob), list(tops), self._length, logprobs.rank)

    def _chance(self, token_id: int, logprob: float) -> TokenChance:
        return TokenChance(token_id, self._detokenizer.spell(token_id), finite(logprob))


def prompt_entries(
    detokenizer: Detokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[TokenEntry]:
    """Entries of a prompt's tokens, read by a fresh detokenizer; `logprobs` are of those from the second on."""
    trail = TokenTrail(detokenizer)
    for token_id, told in zip(token_ids, (None, *logprobs), strict=True):
        trail.push(token_id, told)
    return trail.take(0)


def finite(logprob: float) -> float:
    """Within LOGPROB_FLOOR and 0, also for what is no number: JSON has neither infinities nor NaN."""
    return min(0.0, max(LOGPROB_FLOOR, logprob))
