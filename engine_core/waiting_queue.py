"""The sequences that wait for a row, in the order in which they get one: by priority, then as FairQueue says."""

from collections.abc import Iterator
from itertools import islice

from engine_core.fair_queue import FairQueue, KeyOfClient, client_index_of
from engine_core.sequence import Sequence, Status


class WaitingQueue:
    """Owner of the queues of all priorities, and of the count of tokens admitted, by which sequences age."""

    def __init__(self, client_of: KeyOfClient = client_index_of) -> None:
        """`client_of`: among whom to be fair."""
        self._client_of = client_of
        self._queues: dict[int, FairQueue] = {}
        """By priority; none is empty."""
        self._length = 0
        self.queued_tokens = 0
        """Tokens to prefill of all that wait."""
        self.admitted_tokens = 0
        """Tokens of all sequences that were admitted so far."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for priority in sorted(self._queues):
            yield from self._queues[priority].in_order(self.admitted_tokens)

    def first(self, count: int) -> list[Sequence]:
        """Those who are next, at most so many."""
        return list(islice(self, count))

    def add(self, sequence: Sequence) -> None:
        """Takes its place in the order."""
        priority, _ = sequence.order
        if priority not in self._queues:
            self._queues[priority] = FairQueue(self._client_of)
        self._queues[priority].add(sequence)
        self._length += 1
        self.queued_tokens += sequence.prefill_left

    def admit(self, sequence: Sequence) -> None:
        """It waits no longer, for it gets a row: its client pays for it."""
        self.admitted_tokens += sequence.num_tokens
        self._queues[sequence.order[0]].admit(sequence)
        self._left(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer, and gets nothing."""
        self._queues[sequence.order[0]].remove(sequence)
        self._left(sequence)

    def _left(self, sequence: Sequence) -> None:
        priority, _ = sequence.order
        if not len(self._queues[priority]):
            del self._queues[priority]
        self._length -= 1
        self.queued_tokens -= sequence.prefill_left

    def check_invariants(self) -> None:
        """Raises AssertionError when the queue contradicts itself."""
        for priority, queue in self._queues.items():
            queue.check_invariants()
            assert len(queue), "an empty queue is kept"
            assert all(s.order[0] == priority for s in queue.in_order(self.admitted_tokens))
        waiting = list(self)
        assert all(s.status in (Status.WAITING, Status.PREEMPTED) and s.row == -1 for s in waiting)
        assert len(waiting) == self._length
        assert self.queued_tokens == sum(s.prefill_left for s in waiting)
