"""A bucket of tokens that fills at a constant rate (Turner 1986, "New directions in communications")."""

FULL_AFTER_S = 60.0
"""Limits are stated per minute: the bucket holds a minute's worth, and is full again after a minute."""


class TokenBucket:
    """Owner of what one tenant may still ask for.

    Who asks for more than the bucket can ever hold is let in when it is full, and leaves it in debt: so the rate holds
    over time, and no request is impossible.
    """

    def __init__(self, per_minute: int, now_s: float) -> None:
        self._capacity = per_minute
        self._level = float(per_minute)
        self._as_of_s = now_s

    def missing_for_s(self, amount: int, now_s: float) -> float:
        """Seconds until `amount` may be taken; 0 when it may be now."""
        self._fill(now_s)
        return max(0.0, (min(amount, self._capacity) - self._level) * FULL_AFTER_S / self._capacity)

    def take(self, amount: int, now_s: float) -> None:
        """Takes it, whether it is there or not."""
        self._fill(now_s)
        self._level -= amount

    def give_back(self, amount: int, now_s: float) -> None:
        """Of what was taken, so much was not used."""
        self._fill(now_s)
        self._level = min(self._level + amount, float(self._capacity))

    def remaining(self, now_s: float) -> int:
        """Tokens that may be taken now."""
        self._fill(now_s)
        return max(0, int(self._level))

    def full_in_s(self, now_s: float) -> float:
        """Seconds until it is full if nothing is taken."""
        return self.missing_for_s(self._capacity, now_s)

    def _fill(self, now_s: float) -> None:
        if now_s > self._as_of_s:
            grown = self._level + (now_s - self._as_of_s) * self._capacity / FULL_AFTER_S
            self._level = min(grown, float(self._capacity))
            self._as_of_s = now_s

    def check_invariants(self) -> None:
        """Raises AssertionError when it holds more than it can."""
        assert self._level <= self._capacity
