"""The sequences that wait for a row, in the order in which they get one."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine_core.sequence import Sequence, Status


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class WaitingQueue:
    """By priority, then arrival. A preempted sequence takes its old place again, before all that came after it."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.queued_tokens = 0
        """Tokens to prefill of all that wait."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence:
        """Who is next. Raises IndexError when nobody waits."""
        return self._sequences[0]

    def add(self, sequence: Sequence) -> None:
        """Takes its place in the order."""
        insort(self._sequences, sequence, key=_order)
        self.queued_tokens += sequence.prefill_left

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer."""
        place = bisect_left(self._sequences, sequence.order, key=_order)
        assert self._sequences[place] is sequence, sequence
        del self._sequences[place]
        self.queued_tokens -= sequence.prefill_left

    def check_invariants(self) -> None:
        """Raises AssertionError when the queue contradicts itself."""
        assert self._sequences == sorted(self._sequences, key=_order)
        assert all(s.status in (Status.WAITING, Status.PREEMPTED) and s.row == -1 for s in self)
        assert self.queued_tokens == sum(s.prefill_left for s in self)
