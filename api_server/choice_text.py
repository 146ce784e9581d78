"""From token deltas to one choice: detokenise, parse, look for stop strings in the content, notice the end.

Tokens are taken one by one, so that text, usage and finish reason are the same however the tokens arrive.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from api_server.detokenizer import Detokenizer
from api_server.generation_backend import TokenDelta
from api_server.parsers.answer_parser import AnswerParser
from api_server.parsers.events import CallBegan, CallEnded, Content, Event, append_joined
from api_server.stop_strings import StopStrings
from api_server.token_entries import TokenEntry, TokenTrail
from protocol.logprobs import TokenLogprobs
from protocol.messages import FinishReason

FinishWord = Literal["stop", "length", "tool_calls"]
"""OpenAI's finish reasons; nothing else reaches a client."""


class Finish(msgspec.Struct, frozen=True):
    """How a choice ended."""

    reason: FinishWord
    stop_reason: str | int | None = None
    """The stop string, or the token of stop_token_ids (as in vLLM); "timeout" when the deadline cut it short, with
    reason "length", for clients that know OpenAI's reasons only; None for the model's own end."""


OUT_OF_TIME = Finish("length", "timeout")


class TextDelta(msgspec.Struct, frozen=True):
    """What one token delta added to a choice."""

    events: list[Event]
    """Pieces of one thing are joined; without CallEnded."""
    finish: Finish | None = None
    tokens: list[TokenEntry] = []
    """For a choice that keeps them."""

    @property
    def text(self) -> str:
        """The content alone."""
        return content_of(self.events)


class ChoiceText:
    """Owner of one choice's text state, from its first token to its end."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStrings,
        min_tokens: int,
        silent_stop_ids: frozenset[int],
        parser: AnswerParser,
        is_single_call: bool = False,
        keeps_tokens: bool = False,
    ) -> None:
        """`silent_stop_ids` are left out of the text when they end the choice; `is_single_call`: a tool call does too.

        A stop string counts in the content, when it ends in what token number `min_tokens` (from 1) or a later one
        made certain. With `keeps_tokens` there is an entry for each token.
        """
        self._detokenizer = detokenizer
        self._trail = TokenTrail(detokenizer) if keeps_tokens else None
        self._stops = stops
        self._min_tokens = min_tokens
        self._silent_stop_ids = silent_stop_ids
        self._parser = parser
        self._is_single_call = is_single_call
        self._has_call = False
        self.completion_tokens = 0
        """Tokens taken, the one that ended the choice included."""
        self.cached_tokens = 0
        self.finish: Finish | None = None

    def push(self, delta: TokenDelta) -> TextDelta:
        """Takes the next tokens. Must not be called after the end."""
        assert self.finish is None
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        events: list[Event] = []
        self._take(events, delta)
        if delta.finish_reason is not None and self.finish is None:
            self._end(events, delta.finish_reason, delta.stop_reason)
        return TextDelta(events, self.finish, self._entries(is_due=bool(events) or self.finish is not None))

    def check_invariants(self) -> None:
        """Called by tests."""
        self._stops.check_invariants()
        if self._trail is not None:
            self._trail.check_invariants()
        assert self.completion_tokens >= 0

    def _take(self, events: list[Event], delta: TokenDelta) -> None:
        """The delta's tokens, up to a stop string."""
        last = len(delta.token_ids) - 1
        for index, token_id in enumerate(delta.token_ids):
            self.completion_tokens += 1
            logprobs = delta.logprobs[index] if delta.logprobs else None
            ends_it = delta.finish_reason is FinishReason.STOP and index == last
            if ends_it and token_id in self._silent_stop_ids:
                if self._trail is not None:
                    self._trail.end(token_id, logprobs)
            elif self._add(events, self._parser.feed(self._text_of(token_id, logprobs))):
                return

    def _text_of(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        if self._trail is None:
            return self._detokenizer.push(token_id)
        return self._trail.push(token_id, logprobs)

    def _entries(self, is_due: bool) -> list[TokenEntry]:
        return self._trail.take(self._stops.num_held) if self._trail is not None and is_due else []

    def _end(self, events: list[Event], reason: FinishReason, stop_reason: int | None) -> None:
        if not self._add(events, self._parser.finish(is_cut_off=reason is not FinishReason.STOP)):
            append_joined(events, Content(self._stops.finish()))
            self.finish = _finish(reason, stop_reason, self._stop_word)

    def _add(self, events: list[Event], found: list[Event]) -> bool:
        """Appends what the parser found. Whether that ended the choice: a stop string, or the only call."""
        for event in found:
            if isinstance(event, Content):
                self._add_content(events, event.text)
            else:
                append_joined(events, Content(self._stops.release()))
                self._add_other(events, event)
            if self.finish is not None:
                return True
        return False

    def _add_content(self, events: list[Event], text: str) -> None:
        scan = self._stops.push(text, self.completion_tokens >= self._min_tokens)
        append_joined(events, Content(scan.text))
        if scan.matched is not None:
            self.finish = Finish(self._stop_word, scan.matched)
            if self._trail is not None:
                self._trail.cut(scan.cut_off)

    def _add_other(self, events: list[Event], event: Event) -> None:
        if isinstance(event, CallEnded):
            if self._is_single_call:
                self.finish = Finish("tool_calls")
            return
        self._has_call = self._has_call or isinstance(event, CallBegan)
        append_joined(events, event)

    @property
    def _stop_word(self) -> FinishWord:
        return "tool_calls" if self._has_call else "stop"


def content_of(events: Iterable[Event]) -> str:
    """The answer's text, without thoughts and calls."""
    return "".join(event.text for event in events if isinstance(event, Content))


def _finish(reason: FinishReason, stop_reason: int | None, word_at_a_stop: FinishWord) -> Finish:
    match reason:
        case FinishReason.STOP:
            return Finish(word_at_a_stop, stop_reason)
        case FinishReason.TIMEOUT:
            return OUT_OF_TIME
        case _:
            return Finish("length", stop_reason)
