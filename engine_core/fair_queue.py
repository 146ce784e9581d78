"""The order in which the waiting sequences of one priority get rows: fair between clients, short prompts first.

Between clients: start-time fair queueing (Goyal, Vin, Cheng 1996) over the tokens admitted. Each client has a
counter, the client with the least is next, and pays for what is admitted. Two clients that have requests waiting all
along are never further apart than the longest request of each together. Who comes (again) starts from the present:
there is no credit for the time without requests, and a debt stays until the others have caught up.

Within a client: the shortest first, which is best for the mean time to the first token, until a sequence is overdue
(`Sequence.due`). Overdue ones go before all others of their client, the oldest first. So however many short ones come
after it, a sequence waits for at most PATIENCE times its own tokens of them, and then only for those that came before.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator

from engine_core.sequence import Sequence, Status

PATIENCE = 4
"""A sequence is overdue when so many times its own tokens have been admitted since it arrived."""
MAX_DEBTORS = 1_024
"""Clients without waiting requests whose debt is remembered; beyond, the smallest debts are forgotten."""

ClientKey = Hashable
KeyOfClient = Callable[[Sequence], ClientKey]


def client_index_of(sequence: Sequence) -> ClientKey:
    """Clients are API servers."""
    return sequence.request.client_index


class FairQueue:
    """Owner of the sequences of one priority that wait, and of what their clients have had."""

    def __init__(self, client_of: KeyOfClient = client_index_of) -> None:
        self._client_of = client_of
        self._preempted: list[Sequence] = []
        """They have been admitted before, and paid for: they go first, by arrival."""
        self._clients: dict[ClientKey, _ClientQueue] = {}
        """Those with sequences that wait."""
        self._counters: dict[ClientKey, int] = {}
        """Tokens admitted, from a common start: of clients with waiting sequences, and of debtors."""
        self._now = 0
        """Where a client that comes now starts: the counter of the last one admitted, before it paid."""

    def __len__(self) -> int:
        return len(self._preempted) + sum(len(queue) for queue in self._clients.values())

    def add(self, sequence: Sequence) -> None:
        """Takes its place."""
        if sequence.status is Status.PREEMPTED:
            insort(self._preempted, sequence, key=_arrival)
            return
        client = self._client_of(sequence)
        if client not in self._clients:
            self._clients[client] = _ClientQueue()
            self._counters[client] = max(self._counters.get(client, 0), self._now)
        self._clients[client].add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """It gets a row, and its client pays for its tokens, unless it did before."""
        if sequence.status is not Status.PREEMPTED:
            client = self._client_of(sequence)
            self._now = max(self._now, self._counters[client])
            self._counters[client] += sequence.num_tokens
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer."""
        if sequence.status is Status.PREEMPTED:
            _remove(self._preempted, sequence, _arrival)
            return
        client = self._client_of(sequence)
        self._clients[client].remove(sequence)
        if not self._clients[client]:
            del self._clients[client]
            self._forget_old_debts()

    def in_order(self, admitted_tokens: int) -> Iterator[Sequence]:
        """All, in the order in which they would be admitted if nothing else came. Not to be changed meanwhile.

        `admitted_tokens` is where the count that `Sequence.due` refers to stands.
        """
        yield from self._preempted
        heads: list[tuple[int, tuple[int, int], Sequence, Iterator[Sequence]]] = []
        for client, queue in self._clients.items():
            sequences = queue.in_order(admitted_tokens)
            head = next(sequences)
            heads.append((self._counters[client], _arrival(head), head, sequences))
        heapq.heapify(heads)  # arrivals are unique: no two entries are compared beyond them
        while heads:
            counter, _, head, sequences = heads[0]
            yield head
            after = next(sequences, None)
            if after is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (counter + head.num_tokens, _arrival(after), after, sequences))

    def check_invariants(self) -> None:
        """Raises AssertionError when the queue contradicts itself."""
        assert self._preempted == sorted(self._preempted, key=_arrival)
        assert all(s.status is Status.PREEMPTED for s in self._preempted)
        for client, queue in self._clients.items():
            queue.check_invariants()
            assert len(queue), "a client without sequences is kept"
            assert all(s.status is Status.WAITING and self._client_of(s) == client for s in queue.in_order(0))
            assert client in self._counters
        assert len(self._counters) <= len(self._clients) + MAX_DEBTORS

    def _forget_old_debts(self) -> None:
        debtors = {client: count for client, count in self._counters.items() if client not in self._clients}
        for client, count in debtors.items():
            if count <= self._now:
                del self._counters[client]
        left = [client for client in debtors if client in self._counters]
        if len(left) > MAX_DEBTORS:
            del self._counters[min(left, key=lambda client: self._counters[client])]


class _ClientQueue:
    """Owner of the waiting sequences of one client in one priority."""

    def __init__(self) -> None:
        self._by_length: list[Sequence] = []
        """Not overdue when last looked at."""
        self._by_due: list[Sequence] = []
        """The same ones."""
        self._overdue: list[Sequence] = []
        """By arrival."""

    def __len__(self) -> int:
        return len(self._by_length) + len(self._overdue)

    def add(self, sequence: Sequence) -> None:
        insort(self._by_length, sequence, key=_length)
        insort(self._by_due, sequence, key=_due)

    def remove(self, sequence: Sequence) -> None:
        place = bisect_left(self._overdue, _arrival(sequence), key=_arrival)
        if place < len(self._overdue) and self._overdue[place] is sequence:
            del self._overdue[place]
        else:
            _remove(self._by_length, sequence, _length)
            _remove(self._by_due, sequence, _due)

    def in_order(self, admitted_tokens: int) -> Iterator[Sequence]:
        while self._by_due and self._by_due[0].due <= admitted_tokens:
            sequence = self._by_due.pop(0)
            _remove(self._by_length, sequence, _length)
            insort(self._overdue, sequence, key=_arrival)
        yield from self._overdue
        yield from self._by_length

    def check_invariants(self) -> None:
        assert self._by_length == sorted(self._by_length, key=_length)
        assert self._by_due == sorted(self._by_due, key=_due)
        assert self._overdue == sorted(self._overdue, key=_arrival)
        assert {id(s) for s in self._by_due} == {id(s) for s in self._by_length}


def _arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _length(sequence: Sequence) -> tuple[int, int]:
    return (sequence.num_tokens, sequence.order[1])


def _due(sequence: Sequence) -> tuple[int, int]:
    return (sequence.due, sequence.order[1])


def _remove(sequences: list[Sequence], sequence: Sequence, key: Callable[[Sequence], tuple[int, int]]) -> None:
    place = bisect_left(sequences, key(sequence), key=key)
    assert sequences[place] is sequence, sequence
    del sequences[place]
