"""How many tokens of prefill a step may hold, so that the streams which decode meanwhile do not stall.

A step with prefill takes as long as its decode rows and its chunks together, and each running stream waits for it. So
the bound is one of time: beside decode rows, prefill may take `PREFILL_SHARE` times what the decode rows take by
themselves. When many sequences are about to join it may take longer, in proportion: else a short gap of a few streams
would be paid for by a long wait of many, and by a batch that stays small.

What both cost on this device, with this model and at these lengths is learned from the steps as they run: the last
few steps count, by their median, so that one slow step (a growing cache, a busy machine) changes little. Only a step
without prefill says what the decode rows cost; when there was none for long, or the batch has grown much since, one
step is kept free of prefill.
"""

from collections import deque
from statistics import median
from typing import Protocol

import msgspec

PREFILL_SHARE = 1.75
"""A step with prefill takes about 1 + this many decode steps. The goal is a longest gap below 3 of them; what it is
less than 2 leaves room for costs that grow with the context and for steps that vary."""
JOINING_WEIGHT = 4
"""Who is about to join counts as much as so many who decode. With engine_core.scheduler_simulation's costs, 32 prompts
of 40 tokens at once and 64 tokens out: 165 tokens/s and p99 of the gaps 0.52 s, against 144 and 0.26 s with a weight
of 1, and 189 and 0.96 s without a bound; a prompt that joins 16 streams is bounded all the same."""
SMALLEST_CHUNK = 16
"""Prefill goes on by so many tokens at least, whatever they cost: a forward over a few tokens costs about as much as
one over 16 (demo model, 2 x86 cores: 70 ms for 16 tokens, 182 ms for 64)."""
FIRST_CHUNK = 64
"""What the first step of all takes: it shows what tokens cost here."""
MOST_PREFILL_S = 1.0
"""No prefill of a step takes much longer: what arrives or is aborted meanwhile waits for it."""
STEPS_REMEMBERED = 5
MIXED_STEPS_IN_A_ROW = 32
"""After so many steps of prefill and decode together one is kept free of prefill, to learn what decodes cost now."""
GROWN_MUCH = 2
"""By this factor more decode rows than in the last step without prefill are a reason for another such step."""


class StepShape(msgspec.Struct, frozen=True):
    """What a step computed, as far as its time depends on it."""

    prefill_tokens: int
    decode_rows: int


class ChunkBudget(Protocol):
    """Bounds the prefill of a step."""

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        """Most tokens of prefill beside so many decode rows in the next step; 0 for none, but never for long.

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
    """By measured time; see the module. No clock: it is told how long each step took."""

    def __init__(self, most_tokens: int) -> None:
        """`most_tokens` bounds what `prefill_tokens` returns."""
        if most_tokens < 1:
            raise ValueError(f"a budget of {most_tokens} tokens lets no prefill go on")
        self._most_tokens = most_tokens
        self._decode_steps: deque[tuple[int, float]] = deque(maxlen=STEPS_REMEMBERED)
        """Rows and seconds of the last steps without prefill."""
        self._token_costs: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        """Seconds for a token of prefill in the last steps with prefill."""
        self._mixed_in_a_row = 0

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        """See ChunkBudget."""
        if not decode_rows:
            return self._tokens_in(MOST_PREFILL_S, FIRST_CHUNK)
        if self._wants_decodes_alone(decode_rows):
            return 0
        share = PREFILL_SHARE * max(1.0, JOINING_WEIGHT * joining / decode_rows)
        return self._tokens_in(min(share * self.decode_s(decode_rows), MOST_PREFILL_S), SMALLEST_CHUNK)

    def decode_s(self, decode_rows: int) -> float:
        """Seconds that a step of so many decode rows takes by itself, rather too few than too many.

        More rows than were measured are not taken to cost more, fewer are taken to cost less in proportion. 0 when
        nothing was measured yet.
        """
        if not self._decode_steps:
            return 0.0
        return median(seconds * min(1.0, decode_rows / rows) for rows, seconds in self._decode_steps)

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """See ChunkBudget."""
        if not shape.prefill_tokens:
            self._mixed_in_a_row = 0
            if shape.decode_rows:
                self._observe_decodes(shape.decode_rows, elapsed_s)
            return
        self._mixed_in_a_row = self._mixed_in_a_row + 1 if shape.decode_rows else 0
        if self._decode_steps or not shape.decode_rows:
            seconds = max(0.0, elapsed_s - self.decode_s(shape.decode_rows))
            self._observe_token_cost(seconds / shape.prefill_tokens)

    def check_invariants(self) -> None:
        """Raises AssertionError when what was learned makes no sense."""
        assert all(rows > 0 and seconds >= 0 for rows, seconds in self._decode_steps)
        assert all(cost >= 0 for cost in self._token_costs)

    def _wants_decodes_alone(self, decode_rows: int) -> bool:
        if not self._decode_steps or self._mixed_in_a_row >= MIXED_STEPS_IN_A_ROW:
            return True
        return decode_rows >= GROWN_MUCH * self._decode_steps[-1][0]

    def _observe_decodes(self, rows: int, seconds: float) -> None:
        if self._decode_steps:
            last_rows = self._decode_steps[-1][0]
            if max(rows, last_rows) >= GROWN_MUCH * min(rows, last_rows):
                self._decode_steps.clear()
        self._decode_steps.append((rows, seconds))

    def _observe_token_cost(self, cost_s: float) -> None:
        """One step moves what is believed by a factor of 2 at most: the time of a mixed step is an uncertain sign."""
        if self._token_costs and (known := median(self._token_costs)) > 0:
            cost_s = min(max(cost_s, known / 2), known * 2)
        self._token_costs.append(cost_s)

    def _tokens_in(self, seconds: float, first_guess: int) -> int:
        tokens = first_guess
        if self._token_costs and (cost_s := median(self._token_costs)) > 0:
            tokens = round_chunk(int(min(seconds / cost_s, self._most_tokens)))
        return min(max(tokens, SMALLEST_CHUNK), self._most_tokens)


def round_chunk(tokens: int) -> int:
    """Down to one of few sizes, so that the device meets few shapes."""
    step = SMALLEST_CHUNK // 2 if tokens < 8 * SMALLEST_CHUNK else 4 * SMALLEST_CHUNK
    return tokens // step * step
