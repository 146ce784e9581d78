"""Compiled grammars by their text, and the reasons why others were refused; the longest unused are forgotten."""

from collections import OrderedDict

from engine_core.grammar import Grammar
from protocol.grammar import GrammarKind

MAX_CACHE_BYTES = 256 * 1024 * 1024
"""Of texts and compiled grammars. One that a running request uses lives on until that ends."""
REFUSAL_BYTES = 1024
"""What a refusal counts for beside its text."""

GrammarText = tuple[GrammarKind, str]


class GrammarCache:
    """Owner of both. Not for several threads."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[GrammarText, tuple[Grammar | str, int]] = OrderedDict()
        self._nbytes = 0

    def get(self, text: GrammarText) -> Grammar | str | None:
        """The grammar, or why it was refused; None for an unknown one."""
        found = self._entries.get(text)
        if found is None:
            return None
        self._entries.move_to_end(text)
        return found[0]

    def put(self, text: GrammarText, outcome: Grammar | str) -> None:
        """Keeps what came of a text that was not known."""
        assert text not in self._entries
        nbytes = len(text[1].encode()) + (REFUSAL_BYTES if isinstance(outcome, str) else outcome.nbytes)
        self._entries[text] = outcome, nbytes
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._nbytes -= freed

    def check_invariants(self) -> None:
        """Raises AssertionError when the sum is wrong, or too much is kept."""
        assert self._nbytes == sum(nbytes for _, nbytes in self._entries.values()) <= self._max_bytes
