"""The numbers that engine cores give their messages to us: how a lost message is noticed."""

from protocol.identifiers import Incarnation

MAX_ENGINES = 1_024
"""Engine cores remembered; beyond, the one that was first heard of is forgotten."""


class OutputSequences:
    """Next expected sequence number of each engine core incarnation."""

    def __init__(self) -> None:
        self._next: dict[Incarnation, int] = {}

    def skips(self, incarnation: Incarnation, sequence: int) -> bool:
        """Takes the number of a message; true when messages before it are missing.

        0 always starts anew: the engine core opened its socket to us again. A number that was there already is a
        repetition, which positions deal with.
        """
        expected = self._next.get(incarnation, 0)
        if sequence == 0 or sequence >= expected:
            self._next[incarnation] = sequence + 1
            if len(self._next) > MAX_ENGINES:
                del self._next[next(iter(self._next))]
        return sequence > expected

    def forget(self, incarnation: Incarnation) -> None:
        """The engine core is gone."""
        self._next.pop(incarnation, None)

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._next) <= MAX_ENGINES
