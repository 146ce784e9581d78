"""The running sequences and the rows of the KV cache that they hold."""

import heapq
from bisect import insort
from collections.abc import Iterator

from engine_core.kv_budget import KvBudget, round_kv_length
from engine_core.sequence import Sequence, Status


class Batch:
    """Owner of the rows. The lowest free row is given first, so that few rows stay in use."""

    def __init__(self, num_rows: int, budget: KvBudget) -> None:
        self._num_rows = num_rows
        self._budget = budget
        self._sequences: list[Sequence] = []
        """By order: the last is the first to be preempted."""
        self._free_rows = list(range(num_rows))
        self._releases: list[int] = []
        """Rows that became free since the device was last told."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def last(self) -> Sequence:
        """The youngest of the lowest priority. Raises IndexError when nothing runs."""
        return self._sequences[-1]

    @property
    def is_full(self) -> bool:
        """Whether there is no free row."""
        return not self._free_rows

    @property
    def has_releases(self) -> bool:
        """Whether the device is still to be told of free rows."""
        return bool(self._releases)

    @property
    def prefill_left(self) -> int:
        """Tokens to prefill of all running sequences."""
        return sum(s.prefill_left for s in self._sequences)

    @property
    def kv_rows(self) -> int:
        """Rows that the KV cache must have: up to the highest one held."""
        return max((s.row + 1 for s in self._sequences), default=0)

    @property
    def kv_length(self) -> int:
        """Tokens that each of these rows must hold.

        Known tokens count, not computed ones: what a prompt will need is taken when it is admitted, and a row that
        does not decode in this step has room for one token more than it holds.
        """
        return round_kv_length(max((s.num_tokens for s in self._sequences), default=0))

    @property
    def kv_tokens(self) -> int:
        """What the rows take."""
        return self.kv_rows * self.kv_length

    @property
    def fits(self) -> bool:
        """Whether the bound of the KV cache is kept."""
        return self._budget.fits(self.kv_rows, self.kv_length)

    def can_admit(self, newcomer: Sequence, room_tokens: int, beside: int = 0) -> bool:
        """Whether there is a row for it and all could still grow by `room_tokens` (or to their own end) beside it.

        `beside` are tokens of other things that must stay in the KV cache; none do while the batch is empty. True
        for whoever comes into an empty batch: `SchedulerLimits` sees to that.
        """
        if not self._free_rows:
            return False
        longest = max(min(s.num_tokens + room_tokens, s.most_kv_tokens) for s in (*self._sequences, newcomer))
        return self._budget.fits(max(self.kv_rows, self._free_rows[0] + 1), longest, beside)

    def admit(self, sequence: Sequence, due: int = 0) -> None:
        """Gives it the lowest free row; `due` as in Sequence."""
        sequence.admit(heapq.heappop(self._free_rows), due)
        insort(self._sequences, sequence, key=lambda s: s.order)

    def release(self, sequence: Sequence) -> None:
        """Takes its row; what becomes of the sequence is the caller's."""
        self._sequences.remove(sequence)
        self._releases.append(sequence.row)
        heapq.heappush(self._free_rows, sequence.row)

    def take_releases(self) -> list[int]:
        """Rows that became free since this was last asked."""
        releases, self._releases = self._releases, []
        return releases

    def check_invariants(self) -> None:
        """Raises AssertionError when the batch contradicts itself."""
        held = [s.row for s in self._sequences]
        assert sorted(held + self._free_rows) == list(range(self._num_rows)), "a row is lost or held twice"
        assert self._sequences == sorted(self._sequences, key=lambda s: s.order)
        assert all(s.status is Status.RUNNING and s.prefill_left >= 0 for s in self._sequences)
