"""Where the outputs of the running rows stand in their grammars. No MLX.

What a row may sample depends on its last token: so that must be known before the row's mask is filled, also when
another step is submitted ahead. The device computes logits meanwhile (engine_core.mlx_device).
"""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_core.device import DecodeRow, RowGrammar
from engine_core.grammar import Bitmask

MAX_TOKEN_CPU_S = 0.25
"""Of this thread, to take one token or to find what may follow: a row that takes longer fails, before it stalls the
others. Grammars that are likely to are refused when they are compiled (engine_core.grammar_prober)."""
TOO_SLOW = "it is too ambiguous: to find the next token takes too long"
NOT_ALLOWED = "the model's output cannot be continued by it"
_ALL_TOKENS = -1


class GrammarRow:
    """One stay of a sequence in a row."""

    def __init__(self, wanted: RowGrammar, output: Sequence[int]) -> None:
        """`output` is what it has already, maybe from another engine core."""
        self._matcher = wanted.grammar.matcher()
        self._start = wanted.starts_after
        self._last: deque[int] = deque(maxlen=max(1, len(self._start)))
        self._has_started = not self._start
        self.failure: str | None = None
        """Why it cannot go on."""
        for token_id in output:
            self.accept(token_id)

    @property
    def is_over(self) -> bool:
        """Whether no further token is to come."""
        return self.failure is not None or self._matcher.has_ended

    def accept(self, token_id: int) -> None:
        """Takes the next token of the output; of one that is over, nothing."""
        if self.is_over:
            return
        if self._has_started:
            start_s = time.thread_time()
            if not self._matcher.accept(token_id):
                self.failure = NOT_ALLOWED
            self._judge(start_s)
        else:
            self._last.append(token_id)
            self._has_started = tuple(self._last) == self._start

    def fill(self, bitmask: Bitmask, index: int) -> None:
        """Writes row `index`: what may be sampled next. Everything, before the grammar starts and when it is over."""
        if self.is_over or not self._has_started:
            bitmask[index] = _ALL_TOKENS
            return
        start_s = time.thread_time()
        self._matcher.fill(bitmask, index)
        self._judge(start_s)

    def _judge(self, start_s: float) -> None:
        if time.thread_time() - start_s > MAX_TOKEN_CPU_S:
            self.failure = TOO_SLOW


class GrammarRows:
    """Owner of the rows that have a grammar."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[int, GrammarRow] = {}

    def admit(self, row: int, wanted: RowGrammar | None, output: Sequence[int]) -> None:
        """A sequence takes a row."""
        if wanted is not None:
            self._rows[row] = GrammarRow(wanted, output)

    def release(self, row: int) -> None:
        """Forgets a row, if it is known."""
        self._rows.pop(row, None)

    def places(self, decodes: Sequence[DecodeRow]) -> dict[int, GrammarRow]:
        """Those of them that have a grammar, by their place."""
        return {place: self._rows[d.row] for place, d in enumerate(decodes) if d.row in self._rows}

    def allowed(self, rows: Sequence[GrammarRow]) -> npt.NDArray[np.bool_]:
        """[rows, vocabulary]: what each may sample."""
        bitmask = np.zeros((len(rows), -(-self._vocab_size // 32)), np.int32)
        for index, row in enumerate(rows):
            row.fill(bitmask, index)
        # Words are little-endian on all that MLX runs on.
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def check_invariants(self, taken: Sequence[int]) -> None:
        """Asserts that all state belongs to rows that are taken."""
        assert self._rows.keys() <= set(taken)


def accept_sampled(rows: dict[int, GrammarRow], token_ids: Sequence[int]) -> dict[int, str | None]:
    """Tells the rows, each with its place, what was sampled for them; returns what StepResult.grammar_ends says."""
    ends: dict[int, str | None] = {}
    for place, row in rows.items():
        row.accept(token_ids[place])
        if row.is_over:
            ends[place] = row.failure
    return ends
