"""How many tokens of prefill a step may hold, so that the streams which decode meanwhile do not stall.

A step takes as long as its decode rows and its chunks together, and each running stream waits for it. So the bound is
one of time: beside decode rows, a step may take `STEP_FACTOR` times what it would take without prefill if all that are
about to join decoded already. A long prompt that joins many streams changes little for them; many that join a few
streams may stall these for as long as all of them will wait for one another soon, because otherwise a short gap of a
few would be paid for by a long wait of many, and by a batch that stays small.

What steps cost on this device, with this model and at these lengths: engine_core.step_cost.
"""

from typing import Protocol

from engine_core.step_cost import StepCost, StepShape

STEP_FACTOR = 2.1
"""The goals: the longest gap of streams that a long prompt joins below 3 of their decode steps, and p99 of the gaps of
32 streams that come and go below 2.2; what is left is for costs that grow with the context and steps that vary."""
SMALLEST_CHUNK = 16
"""Prefill goes on by so many tokens at least, whatever they cost."""
FIRST_CHUNK = 64
"""What the first step of all takes: it shows what tokens cost here."""
MOST_STEP_S = 1.0
"""A step with prefill takes no longer: what arrives or is aborted meanwhile waits for it."""


class ChunkBudget(Protocol):
    """Bounds the prefill of a step."""

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        """Most tokens of prefill beside so many decode rows in the next step, at least 1.

        `joining` sequences are being prefilled, or wait and there are rows for them.
        """
        ...

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """A step of this shape took so long."""
        ...


class FixedChunkBudget:
    """The same number of tokens always."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        """See ChunkBudget."""
        return self._most_tokens

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """See ChunkBudget: of no interest here."""


class TimedChunkBudget:
    """By measured time; see the module."""

    def __init__(self, most_tokens: int) -> None:
        """`most_tokens` bounds what `prefill_tokens` returns."""
        if most_tokens < 1:
            raise ValueError(f"a budget of {most_tokens} tokens lets no prefill go on")
        self._most_tokens = most_tokens
        self._cost = StepCost()

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        """See ChunkBudget."""
        tokens = FIRST_CHUNK
        if self._cost.is_known:
            tokens = round_chunk(self._tokens_in(self._step_s(decode_rows, joining), decode_rows))
        return min(max(tokens, SMALLEST_CHUNK), self._most_tokens)

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """See ChunkBudget."""
        self._cost.observe(shape, elapsed_s)

    def check_invariants(self) -> None:
        """Raises AssertionError when what was learned makes no sense."""
        self._cost.check_invariants()

    def _step_s(self, decode_rows: int, joining: int) -> float:
        if not decode_rows:
            return MOST_STEP_S
        return min(STEP_FACTOR * self._cost.seconds(StepShape(0, decode_rows + joining)), MOST_STEP_S)

    def _tokens_in(self, seconds: float, decode_rows: int) -> int:
        return int(min(max(self._cost.prefill_tokens(seconds, decode_rows), 0), self._most_tokens))


def round_chunk(tokens: int) -> int:
    """Down to one of few sizes, so that the device meets few shapes."""
    step = SMALLEST_CHUNK // 2 if tokens < 8 * SMALLEST_CHUNK else 4 * SMALLEST_CHUNK
    return tokens // step * step
