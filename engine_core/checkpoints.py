"""At which block borders a model with recurrent states leaves a checkpoint: its states as they are there. Pure.

Such states hold all tokens before them and cannot be cut: a prompt can only start where a checkpoint was left, so it is
decided beforehand where one will be of use, and prefill chunks end there:

- at the last border of the prompt, for whoever sends it again, or with more behind it;
- where it leaves what others have: the tokens that they share are asked for again most likely;
- where a request that waits leaves it, which starts from there then;
- at every so many tokens, so that a prompt that shares less than all with it is not computed from its beginning. As
  many as take as much memory as a checkpoint does: so checkpoints take half of it at most, within bounds;
- the newest border that decode has passed: the next turn of a conversation begins there. The one before is given up,
  unless somebody has used it meanwhile.
"""

from collections.abc import Iterable

from engine_core.live_prefixes import shared_tokens
from engine_core.sequence import Sequence
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash

FEWEST_BETWEEN, MOST_BETWEEN = 1_024, 4_096
"""Tokens from one regular checkpoint to the next. Of Qwen3-Next a checkpoint takes 75 MB in float32, as much as 3,100
tokens; of a model without attention nothing takes any memory but checkpoints."""
NO_BORDER = 1 << 31
"""Tokens: farther than any sequence is long."""
MOST_ASKED = 4
"""Borders of a row where others want a checkpoint: each ends a chunk of prefill, and takes memory."""


class _Row:
    __slots__ = ("asked", "borders", "last", "newest", "passed")

    def __init__(self, borders: set[int], last: int) -> None:
        self.borders = borders
        self.asked = 0
        self.last = last
        """Border of the prompt; what comes after is decoded."""
        self.passed = 0
        """The last border at which it was asked whether one is due."""
        self.newest: BlockHash | None = None
        """That decode has left, and that is no regular one."""


class Checkpoints:
    """Owner of the borders where running sequences leave checkpoints."""

    def __init__(self, checkpoint_tokens: int) -> None:
        """`checkpoint_tokens`: of KV, which take as much memory as a checkpoint."""
        between = min(max(checkpoint_tokens, FEWEST_BETWEEN), MOST_BETWEEN)
        self.between = -(-between // BLOCK_TOKENS) * BLOCK_TOKENS
        self._rows: dict[int, _Row] = {}

    def admitted(self, sequence: Sequence, shared: int) -> None:
        """A sequence got a row; it has so many tokens in common with others that are stored or run."""
        last = border_before(sequence.num_tokens - 1)
        self._rows[sequence.row] = _Row({last, border_before(min(shared, sequence.num_tokens - 1))}, last)

    def forget(self, row: int) -> None:
        """A sequence of which nothing is stored got this row."""
        self._rows.pop(row, None)

    def ask(self, sequence: Sequence, running: Iterable[Sequence], at_least: int) -> bool:
        """Whether one of those that run will leave a checkpoint from which `sequence` has so many tokens, or more."""
        return any(self._asked(sequence, other, at_least) for other in running)

    def _asked(self, sequence: Sequence, other: Sequence, at_least: int) -> bool:
        row = self._rows.get(other.row)
        most = min(other.num_tokens, sequence.num_tokens) - 1
        if row is None or other.prefill_left <= 0 or at_least > most:
            return False
        if sequence.tokens(at_least - 1, 1)[0] != other.tokens(at_least - 1, 1)[0]:
            return False
        border = border_before(min(shared_tokens(sequence, other), most))
        if border < at_least or border <= other.num_computed:
            return False
        if border not in row.borders and border % self.between:
            if row.asked == MOST_ASKED:
                return False
            row.asked += 1
            row.borders.add(border)
        return True

    def chunk_tokens(self, sequence: Sequence) -> int:
        """Up to the next border: where the chunk of a running sequence ends, and nothing is decoded in that step."""
        row, computed = self._rows.get(sequence.row), sequence.num_computed
        if row is None:
            return NO_BORDER
        regular = (computed // self.between + 1) * self.between
        ahead = min((border for border in row.borders if border > computed), default=regular)
        return min(regular, ahead) - computed

    def is_due(self, sequence: Sequence) -> bool:
        """Whether a running sequence leaves a checkpoint where it is now. Asked again at the same place: no."""
        row, place = self._rows.get(sequence.row), sequence.num_computed
        if row is None or not place or place % BLOCK_TOKENS or place > sequence.num_tokens or place == row.passed:
            return False
        row.passed = place
        return place in row.borders or place % self.between == 0 or place > row.last

    def left(self, sequence: Sequence) -> BlockHash | None:
        """It has left one there; which of its own it gives up for it."""
        row, place = self._rows[sequence.row], sequence.num_computed
        if place <= row.last or place % self.between == 0:
            return None
        given_up, row.newest = row.newest, sequence.chain[place // BLOCK_TOKENS]
        return given_up

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        for row in self._rows.values():
            assert all(border % BLOCK_TOKENS == 0 for border in row.borders)
            assert row.asked <= MOST_ASKED and len(row.borders) <= 2 + row.asked


def border_before(tokens: int) -> int:
    """The last block border at which there are so many tokens or fewer."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS
