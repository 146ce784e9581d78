"""How long a step takes, learned from the steps as they run.

A step is taken to cost so much by itself, so much for each decode row and so much for each token of prefill: where
the device computes all of them in one forward, that is what it is. Each cost drifts (contexts grow, the machine gets
busy), that of prefill the most. From the difference between the time that a step took and the time expected, a Kalman
filter (Kalman 1960, "A New Approach to Linear Filtering and Prediction Problems") changes each cost by how uncertain it
was and how much of it was in the step. All is relative to the last costs, so the same numbers suit all devices.

A fit to the last steps would not do: the chunk budget makes chunks smaller as they get dearer, so that all steps take
about the same time; a fit would conclude that chunks cost nothing.
"""

import msgspec

DRIFT = (0.01, 0.01, 0.04)
"""By how much of itself each cost changes from a step to the next."""
SPREAD = 0.1
"""By how much of itself the time of a step differs from what the costs say."""
FIRST_DOUBT = 1.0
MOST_DOUBT = 0.3
"""A cost that no step shows any more is not taken to be more uncertain than this."""
MOST_CHANGE = 2.0
"""No cost changes by more than this factor with a step, and none is taken to have: one slow step changes little."""
BASE_TOKENS = 20
"""The first step is taken to cost as much by itself as so many tokens: 55 ms and 2.4 ms on 2 x86 cores."""
SHORTEST_STEP_S = 1e-6
"""No device is faster: what takes less was not measured."""

_Costs = tuple[float, float, float]


class StepShape(msgspec.Struct, frozen=True):
    """What a step computes, as far as its time depends on it."""

    prefill_tokens: int
    decode_rows: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing is computed."""
        return not (self.prefill_tokens or self.decode_rows)


class StepCost:
    """Owner of what was learned. No clock: it is told how long each step took."""

    def __init__(self) -> None:
        self._costs: _Costs | None = None
        """Seconds: of a step, of a decode row, of a token of prefill."""
        self._doubt = [[FIRST_DOUBT**2 * (i == j) for j in range(3)] for i in range(3)]
        """Covariance of the costs, relative to them."""

    @property
    def is_known(self) -> bool:
        """Whether a step was observed."""
        return self._costs is not None

    def seconds(self, shape: StepShape) -> float:
        """What such a step is expected to take; 0 while nothing is known."""
        return sum(cost * feature for cost, feature in zip(self._costs or (), _features(shape), strict=False))

    def prefill_tokens(self, seconds: float, decode_rows: int) -> float:
        """How many tokens of prefill a step of so many rows can hold within this time; may be less than 0."""
        assert self._costs is not None
        return (seconds - self.seconds(StepShape(0, decode_rows))) / self._costs[2]

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        """A step of this shape took so long. Steps that computed nothing, or took no time, say nothing."""
        if shape.is_empty or elapsed_s < SHORTEST_STEP_S:
            return
        if self._costs is None:
            unit_s = elapsed_s / (BASE_TOKENS + shape.decode_rows + shape.prefill_tokens)
            self._costs = (BASE_TOKENS * unit_s, unit_s, unit_s)
        expected_s = self.seconds(shape)
        shares = [cost * feature / expected_s for cost, feature in zip(self._costs, _features(shape), strict=True)]
        surprise = min(max(elapsed_s / expected_s, 1 / MOST_CHANGE), MOST_CHANGE) - 1
        base, row, token = (
            cost * min(max(1 + gain * surprise, 1 / MOST_CHANGE), MOST_CHANGE)
            for cost, gain in zip(self._costs, self._gains(shares), strict=True)
        )
        self._costs = (base, row, token)

    def _gains(self, shares: list[float]) -> list[float]:
        """How far each cost follows a surprise; what the step shows makes the doubt smaller."""
        doubt = self._doubt
        for i, drift in enumerate(DRIFT):
            if doubt[i][i] < MOST_DOUBT**2:
                doubt[i][i] += drift**2
        seen = [sum(doubt[i][j] * shares[j] for j in range(3)) for i in range(3)]
        spread = SPREAD**2 + sum(share * each for share, each in zip(shares, seen, strict=True))
        gains = [each / spread for each in seen]
        for i in range(3):
            for j in range(3):
                doubt[i][j] -= gains[i] * seen[j]
        return gains

    def check_invariants(self) -> None:
        """Raises AssertionError when what was learned makes no sense."""
        assert self._costs is None or all(cost > 0 for cost in self._costs)
        assert all(self._doubt[i][i] >= 0 for i in range(3))


def _features(shape: StepShape) -> _Costs:
    return 1.0, float(shape.decode_rows), float(shape.prefill_tokens)
