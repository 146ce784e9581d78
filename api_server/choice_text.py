"""From token deltas to the text of one choice: detokenise, look for stop strings, notice the end.

Tokens are taken one by one, so that text, usage and finish reason are the same however the tokens arrive.
"""

from typing import Literal

import msgspec

from api_server.detokenizer import Detokenizer
from api_server.generation_backend import TokenDelta
from api_server.stop_strings import StopScan, StopStrings
from protocol.messages import FinishReason

FinishWord = Literal["stop", "length"]
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

    text: str
    finish: Finish | None = None


class ChoiceText:
    """Owner of one choice's text state, from its first token to its end."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStrings,
        min_tokens: int,
        silent_stop_ids: frozenset[int],
    ) -> None:
        """`silent_stop_ids` are left out of the text when they end the choice.

        A stop string counts when it ends in the text of token number `min_tokens` (from 1) or later.
        """
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._silent_stop_ids = silent_stop_ids
        self.completion_tokens = 0
        """Tokens taken, the one that ended the choice included."""
        self.cached_tokens = 0
        self.finish: Finish | None = None

    def push(self, delta: TokenDelta) -> TextDelta:
        """Takes the next tokens. Must not be called after the end."""
        assert self.finish is None
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        parts = []
        for index, token_id in enumerate(delta.token_ids):
            self.completion_tokens += 1
            ends_it = delta.finish_reason is FinishReason.STOP and index == len(delta.token_ids) - 1
            if ends_it and token_id in self._silent_stop_ids:
                break
            scan = self._take(token_id)
            parts.append(scan.text)
            if scan.matched is not None:
                self.finish = Finish("stop", scan.matched)
                return TextDelta("".join(parts), self.finish)
        if delta.finish_reason is not None:
            parts.append(self._stops.finish())
            self.finish = _finish(delta.finish_reason, delta.stop_reason)
        return TextDelta("".join(parts), self.finish)

    def check_invariants(self) -> None:
        """Called by tests."""
        self._stops.check_invariants()
        assert self.completion_tokens >= 0

    def _take(self, token_id: int) -> StopScan:
        armed = self.completion_tokens >= self._min_tokens
        return self._stops.push(self._detokenizer.push(token_id), armed)


def _finish(reason: FinishReason, stop_reason: int | None) -> Finish:
    match reason:
        case FinishReason.STOP:
            return Finish("stop", stop_reason)
        case FinishReason.TIMEOUT:
            return OUT_OF_TIME
        case _:
            return Finish("length", stop_reason)
