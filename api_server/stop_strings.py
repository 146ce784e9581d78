"""Stop strings in a stream of text: nothing that may still turn out to be one is let out, and nothing more.

All patterns advance together, character by character, each by its Knuth-Morris-Pratt automaton (Knuth, Morris,
Pratt 1977): the state of a pattern is the length of the longest suffix of the text that begins it, so that the
longest state is exactly what must be held back. The match that *ends* first wins, of two that end together the
longer: then the result does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence

import msgspec


class StopScan(msgspec.Struct, frozen=True):
    """What one piece of text led to."""

    text: str
    """Text that is certain now."""
    matched: str | None = None
    """The stop string that was found; the scan is over."""
    cut_off: int = 0
    """Characters that are not let out because of it, those behind it included."""


class StopStrings:
    """Owner of the text that one choice holds back."""

    def __init__(self, patterns: Sequence[str], include_in_output: bool) -> None:
        """`patterns` are not empty strings. With `include_in_output` the text ends behind the match, not before."""
        self._automata = [_Automaton(pattern) for pattern in patterns]
        self._include_in_output = include_in_output
        self._held = ""

    def push(self, text: str, armed: bool) -> StopScan:
        """Scans the next piece. A match that ends in a piece that is not `armed` does not count."""
        for position, character in enumerate(text):
            matched = self._advance(character)
            if matched is not None and armed:
                return self._cut(text, position + 1, matched)
        return self._let_out(text)

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def release(self) -> str:
        """What is held back, because the text is interrupted: no stop string goes across."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.reset()
        return held

    def finish(self) -> str:
        """What is still held back, when the text has ended without a match. Nothing may be pushed afterwards."""
        held, self._held = self._held, ""
        self._automata = []
        return held

    def check_invariants(self) -> None:
        """What is held back is as long as the longest beginning of a stop string that the text ends with."""
        begun = max((automaton.state for automaton in self._automata), default=0)
        assert self._include_in_output or len(self._held) == begun
        assert not self._held or any(a.pattern.startswith(self._held) for a in self._automata)

    def _advance(self, character: str) -> str | None:
        matched = None
        for automaton in self._automata:
            complete = automaton.advance(character)
            if complete and (matched is None or len(automaton.pattern) > len(matched)):
                matched = automaton.pattern
        return matched

    def _cut(self, text: str, end: int, matched: str) -> StopScan:
        """`matched` ends in front of text[end]."""
        end += len(self._held)
        text = self._held + text
        self.finish()
        end -= 0 if self._include_in_output else len(matched)
        return StopScan(text[:end], matched, len(text) - end)

    def _let_out(self, text: str) -> StopScan:
        text = self._held + text
        begun = 0 if self._include_in_output else max((automaton.state for automaton in self._automata), default=0)
        certain = len(text) - begun
        self._held = text[certain:]
        return StopScan(text[:certain])


class _Automaton:
    """One pattern's progress. Linear time for any pattern and text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        """Length of the longest suffix of the text that begins the pattern, the whole pattern excluded."""
        self._borders = _borders(pattern)

    def reset(self) -> None:
        """The text starts anew."""
        self.state = 0

    def advance(self, character: str) -> bool:
        """Takes one character; whether the pattern ends with it."""
        while self.state and self.pattern[self.state] != character:
            self.state = self._borders[self.state]
        if self.pattern[self.state] == character:
            self.state += 1
        if self.state < len(self.pattern):
            return False
        self.state = self._borders[self.state]
        return True


def _borders(pattern: str) -> list[int]:
    """For each length of a prefix, the length of the longest shorter prefix that is also its suffix."""
    borders = [0, 0]
    for character in pattern[1:]:
        border = borders[-1]
        while border and pattern[border] != character:
            border = borders[border]
        borders.append(border + 1 if pattern[border] == character else 0)
    return borders
