"""Thoughts between a pair of markers, at the beginning of an answer: <think>...</think> and its relatives.

Thoughts are opened by the model, or by the template at the prompt's end. Behind the first text of the answer the
markers are text. Thoughts that are never closed are thoughts, with one exception: when a model calls a tool without
having closed them, and ends by itself, the call is a call. When it closes them, what looked like a call was a thought.
"""

from collections.abc import Callable

import msgspec

from api_server.parsers.events import Content, Event, Reasoning
from api_server.parsers.source import (
    Markers,
    Source,
    Steps,
    accept_after_spaces,
    collect_until,
    copy_trimmed,
    copy_until,
    skip_spaces,
)


class ThinkMarkers(msgspec.Struct, frozen=True):
    """What opens and closes a model's thoughts; the first of each is what templates write."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """All its markers."""
        return self.opens + self.closes

    def is_open_at_end_of(self, prompt: str) -> bool:
        """Whether the prompt has opened the thoughts of the answer."""
        return prompt.rstrip().endswith(self.opens)

    def is_left_open_in(self, text: str) -> bool:
        """Whether a text to be continued opens thoughts and does not close them."""
        return max(map(text.rfind, self.opens)) > max(map(text.rfind, self.closes))


THINK = ThinkMarkers(("<think>",), ("</think>",))
MISTRAL = ThinkMarkers(("[THINK]",), ("[/THINK]",))
KIMI_VL = ThinkMarkers(("◁think▷",), ("◁/think▷",))
GEMMA4 = ThinkMarkers(("<|channel>thought",), ("<channel|>",))
SEED_OSS = ThinkMarkers(("<seed:think>",), ("</seed:think>",))
GRANITE = ThinkMarkers(
    ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
)


class ThinkGrammar:
    """A grammar for one pair; what follows the thoughts is content, to be parsed for calls by the next stage."""

    def __init__(
        self, markers: ThinkMarkers, is_open: bool, call_starts: tuple[str, ...], has_call: Callable[[str], bool]
    ) -> None:
        """`is_open`: by the prompt. `has_call` tells whether a text that begins with a call's start holds a call."""
        self._is_open = is_open
        self._markers = Markers(*markers.all)
        self._opens = Markers(*markers.opens)
        self._closes = Markers(*markers.closes)
        self._closes_and_calls = Markers(*markers.closes, *call_starts)
        self._has_call = has_call

    def __call__(self, source: Source) -> Steps[None]:
        """The whole answer."""
        if self._is_open:
            yield from accept_after_spaces(source, self._opens)  # some models write it once more
            yield from self._thoughts(source)
        while (marker := (yield from accept_after_spaces(source, self._markers))) is not None:
            if marker in self._opens.all:
                yield from self._thoughts(source)
            else:
                yield from skip_spaces(source)
        yield from copy_until(source, Markers(), lambda text: (Content(text),))

    def _thoughts(self, source: Source) -> Steps[None]:
        """Thoughts up to their end, without the white space around them."""
        yield from skip_spaces(source)
        _, spaces, marker = yield from copy_trimmed(source, self._closes_and_calls, _reasoning)
        if marker is not None and marker not in self._closes.all:
            yield from self._call_or_thought(source, spaces, marker)
        yield from skip_spaces(source)

    def _call_or_thought(self, source: Source, spaces: str, start: str) -> Steps[None]:
        """What begins like a call waits for the end of the thoughts, which decides."""
        text, close = yield from collect_until(source, self._closes)
        if close is None and not source.is_cut_off and self._has_call(start + text):
            yield Content(start + text)
        else:
            yield Reasoning((spaces + start + text).rstrip())


def _reasoning(text: str) -> tuple[Event, ...]:
    return (Reasoning(text),)
