"""The text that a grammar reads, and the steps that grammars are made of.

A step is a generator: it yields events, yields None to wait for more text, and returns what it read. What it
yields and returns depends on the text alone, never on where the text was cut.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from api_server.parsers.events import Event

T = TypeVar("T")
Steps = Generator[Event | None, None, T]
Emit = Callable[[str], Iterable[Event]]
"""What becomes of a piece of text."""

NAME = re.compile(r"[\w.\-]*")
"""Characters of a function's name; more than OpenAI allows, since models make names up."""
_SPACES = re.compile(r"\s*")


class Markers:
    """A set of strings to look for. The one that begins first counts; of several that begin together, the longest."""

    def __init__(self, *markers: str) -> None:
        self.all = markers
        self._pattern = re.compile("|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True)))
        begun = sorted({marker[:length] for marker in markers for length in range(1, len(marker))}, key=len)
        self._begun = re.compile(f"(?:{'|'.join(map(re.escape, reversed(begun))) or '(?!)'})\\Z")
        self._firsts = frozenset(marker[0] for marker in markers)

    def find(self, text: str, ended: bool) -> tuple[int, str | None]:
        """(how much of the text is certain to come before any marker, the marker that follows, if it is known)."""
        if self._firsts.isdisjoint(text):
            return len(text), None
        whole = self._pattern.search(text)
        index, marker = (whole.start(), whole[0]) if whole else (len(text), None)
        if not ended:
            begun = self._begun.search(text)
            if begun is not None and begun.start() <= index:
                return begun.start(), None
        return index, marker


class Source:
    """Owner of the text that has come and was not taken yet."""

    def __init__(self) -> None:
        self.rest = ""
        """Text that was not taken; changed by the methods alone."""
        self.ended = False
        self.is_cut_off = False
        """Whether it has ended, because of the length limit."""
        self._since_mark: list[str] | None = None

    def push(self, text: str) -> None:
        assert not self.ended
        self.rest += text

    def end(self, is_cut_off: bool) -> None:
        """No more text comes."""
        self.ended = True
        self.is_cut_off = is_cut_off

    def take(self, length: int) -> str:
        taken, self.rest = self.rest[:length], self.rest[length:]
        if self._since_mark is not None:
            self._since_mark.append(taken)
        return taken

    def take_until(self, markers: Markers) -> tuple[str, str | None]:
        """Takes the text that is certain to come before any marker, and the marker, if it is known."""
        index, marker = markers.find(self.rest, self.ended)
        text = self.take(index)
        if marker is not None:
            self.take(len(marker))
        return text, marker

    def mark(self) -> None:
        """From here on what is taken is kept, so that `rewind` can give it back, until `commit`."""
        assert self._since_mark is None
        self._since_mark = []

    def rewind(self) -> None:
        """Back to the mark."""
        assert self._since_mark is not None
        self.rest = "".join(self._since_mark) + self.rest
        self._since_mark = None

    def give_up(self) -> None:
        """What was read since the mark is none of what was looked for.

        Back to the mark, so that it is read as text; but what only the length limit has cut off is dropped. (Steps
        read as far as they can: where one fails for another reason, it has failed before the end of the text.)
        """
        if self.is_cut_off:
            self.take(len(self.rest))
            self.commit()
        else:
            self.rewind()

    def commit(self) -> None:
        """Forgets the mark, if there is one."""
        self._since_mark = None

    @property
    def ran_out(self) -> bool:
        """Whether nothing is left and nothing will come."""
        return self.ended and not self.rest


def copy_until(source: Source, markers: Markers, emit: Emit) -> Steps[str | None]:
    """Hands text to `emit` up to the first marker, which is taken and returned; None at the end."""
    while True:
        text, marker = source.take_until(markers)
        if text:
            yield from emit(text)
        if marker is not None or source.ran_out:
            return marker
        yield None


def copy_trimmed(source: Source, markers: Markers, emit: Emit) -> Steps[tuple[bool, str, str | None]]:
    """As `copy_until`, but holds back white space that the text may end with.

    Returns (whether there was text, the white space after it, the marker).
    """
    held = ""
    has_text = False
    while True:
        text, marker = source.take_until(markers)
        text = held + text
        body = text.rstrip()
        held = text[len(body) :]
        if body:
            has_text = True
            yield from emit(body)
        if marker is not None or source.ran_out:
            return has_text, held, marker
        yield None


def collect_until(source: Source, markers: Markers) -> Steps[tuple[str, str | None]]:
    """(text before the first marker, the marker, which is taken); None at the end."""
    parts: list[str] = []

    def keep(text: str) -> tuple[Event, ...]:
        parts.append(text)
        return ()

    marker = yield from copy_until(source, markers, keep)
    return "".join(parts), marker


def accept(source: Source, markers: Markers) -> Steps[str | None]:
    """Takes the marker that the text begins with; None when it begins with none."""
    while True:
        index, marker = markers.find(source.rest, source.ended)
        if index > 0 or source.ran_out:
            return None
        if marker is not None:
            return source.take(len(marker))
        yield None


def take_run(source: Source, pattern: re.Pattern[str]) -> Steps[str]:
    """Takes the longest beginning that consists of the pattern's characters (a pattern that matches any part of it)."""
    parts = []
    while True:
        match = pattern.match(source.rest)
        assert match is not None
        parts.append(source.take(match.end()))
        if source.rest or source.ended:
            return "".join(parts)
        yield None


def skip_spaces(source: Source) -> Steps[str]:
    """Takes white space; returns it."""
    return (yield from take_run(source, _SPACES))


def accept_after_spaces(source: Source, markers: Markers) -> Steps[str | None]:
    """As `accept`, and takes white space before the marker; nothing is taken where none follows. Sets the mark."""
    source.mark()
    yield from skip_spaces(source)
    marker = yield from accept(source, markers)
    if marker is None:
        source.rewind()
    source.commit()
    return marker


def next_character(source: Source) -> Steps[str]:
    """The next character, not taken; empty at the end."""
    while not source.rest and not source.ended:
        yield None
    return source.rest[:1]


class StreamParser:
    """A grammar at work on one text."""

    def __init__(self, grammar: Callable[[Source], Steps[None]]) -> None:
        self._source = Source()
        self._steps = grammar(self._source)

    def feed(self, text: str) -> list[Event]:
        """What is certain with this text."""
        self._source.push(text)
        return self._advance()

    def finish(self, is_cut_off: bool) -> list[Event]:
        """What is left when the text has ended, because of the length limit or by itself."""
        self._source.end(is_cut_off)
        return self._advance()

    def _advance(self) -> list[Event]:
        events = []
        for event in self._steps:
            if event is None:
                break
            events.append(event)
        assert not (self._source.ended and self._source.rest), "a grammar takes all text"
        return events
