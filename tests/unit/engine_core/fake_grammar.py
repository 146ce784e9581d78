"""A grammar that allows one output, end included."""

from collections.abc import Sequence

import numpy as np

from engine_core.grammar import Bitmask


class OneOutput:
    """A Grammar (engine_core.grammar)."""

    nbytes = 100

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)

    def matcher(self) -> "OneOutputMatcher":
        return OneOutputMatcher(self.tokens)


class OneOutputMatcher:
    """A Matcher."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._left = list(tokens)

    @property
    def has_ended(self) -> bool:
        return not self._left

    def accept(self, token_id: int) -> bool:
        if not self._left or self._left[0] != token_id:
            return False
        del self._left[0]
        return True

    def fill(self, bitmask: Bitmask, index: int) -> None:
        bitmask[index] = 0
        bitmask.view(np.uint32)[index, self._left[0] // 32] = 1 << self._left[0] % 32
