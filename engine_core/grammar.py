"""What the engine core asks of a compiled grammar: xgrammar's (engine_core.xgrammar_backend), or the tests' fakes."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]
"""[rows, vocabulary / 32, rounded up]: bit i of a row, the lowest of a word first, is token i."""


class GrammarRefused(Exception):
    """A grammar cannot be used; the message is for the caller of the request."""


class Matcher(Protocol):
    """Where one output stands in its grammar."""

    @property
    def has_ended(self) -> bool:
        """Whether the output is complete, end-of-sequence token included: nothing more can be accepted."""

    def accept(self, token_id: int) -> bool:
        """Takes the output's next token; False, and nothing has changed, where the grammar does not allow it."""

    def fill(self, bitmask: Bitmask, index: int) -> None:
        """Writes row `index`: the tokens that may come next. End-of-sequence tokens only where the output is whole."""


class Grammar(Protocol):
    """Compiled; shared by all requests that brought the same text."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, about."""

    def matcher(self) -> Matcher:
        """At the beginning of an output."""
