"""The numbers that engine cores give their messages to us: how a lost message is noticed."""

from protocol.identifiers import Incarnation

MAX_ENGINES = 1_024
"""Engine cores remembered; beyond, the one that was first heard of is forgotten."""


class OutputSequences:
    """Next expected sequence number of each engine core incarnation, for one client index of ours.

    The numbers start at 0 and never anew, so what is remembered outlives the news that an engine core is lost: one
    that was only silent for a while goes on where it was.
    """

    def __init__(self) -> None:
        self._next: dict[Incarnation, int] = {}

    def skips(self, incarnation: Incarnation, sequence: int) -> bool:
        """Takes the number of a message; true when messages before it are missing.

        A number that was there already is a repetition, which positions deal with.
        """
        expected = self._next.get(incarnation, 0)
        self._next[incarnation] = max(expected, sequence + 1)
        if len(self._next) > MAX_ENGINES:
            del self._next[next(iter(self._next))]
        return sequence > expected

    def start_anew(self) -> None:
        """We have another client index: every engine core numbers from 0 for it."""
        self._next.clear()

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._next) <= MAX_ENGINES
