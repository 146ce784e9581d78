"""The running sequences: which row each has, and room for them to grow."""

import heapq
from bisect import insort
from collections.abc import Iterator

import msgspec

from engine_core.device import RowMove, Slot
from engine_core.kv_pools import KvPools
from engine_core.sequence import Sequence, Status

ROOM_TOKENS = 32
"""A newcomer gets a slot in which it can grow by so many tokens (or to its end) before it must move. To move costs
about one fifteenth of a decode step for 300 tokens (demo model, 2 x86 cores: 2.9 ms)."""


class RowOrders(msgspec.Struct, frozen=True):
    """What the device is to do with rows and pools in a step."""

    releases: list[int]
    pool_slots: list[int]
    moves: list[RowMove]
    plan_tokens: int
    """What the pools take while it does."""
    changes: bool
    """Whether anything is to be done, admissions included."""


class Batch:
    """Owner of the rows, and with the pools of where they are in the KV cache."""

    def __init__(self, num_rows: int, pools: KvPools) -> None:
        self._num_rows = num_rows
        self._pools = pools
        self._sequences: list[Sequence] = []
        """By order: the last is the first to be preempted."""
        self._free_rows = list(range(num_rows))
        self._releases: list[int] = []
        """Rows that became free since the device was last told."""
        self._moves: list[RowMove] = []
        """What the plan in the making moves."""
        self._new_rows: set[int] = set()
        """What the plan in the making admits."""
        self._stalled: set[int] = set()
        """Rows that have outgrown their slot and cannot be moved before the next plan."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def can_step(self) -> list[Sequence]:
        """Those that have something to compute, and room for it."""
        return [s for s in self._sequences if s.row not in self._stalled and not s.is_at_its_end]

    @property
    def is_full(self) -> bool:
        """Whether there is no free row."""
        return not self._free_rows

    @property
    def has_news(self) -> bool:
        """Whether the device is still to be told of free rows or slots."""
        return bool(self._releases) or (not self._sequences and not self._pools.is_idle)

    @property
    def prefill_left(self) -> int:
        """Tokens to prefill of all running sequences."""
        return sum(s.prefill_left for s in self._sequences)

    @property
    def kv_tokens(self) -> int:
        """What their slots take."""
        return self._pools.held_tokens

    @property
    def plan_tokens(self) -> int:
        """What the pools take in the plan in the making, at least."""
        return self._pools.plan_tokens

    def make_room(self) -> list[Sequence]:
        """Moves those that outgrew their slots, in order; returns those that lost their row for it.

        The youngest of the lowest priority does, when there would not be room enough even in pools that are as small
        as they can be. Where there would be, who is to move is stalled while the pools shrink: for one step, since
        nobody is admitted meanwhile.
        """
        self._moves, self._new_rows, self._stalled = [], set(), set()
        preempted = []
        for sequence in list(self._sequences):
            needed = min(sequence.length, sequence.most_kv_tokens)
            while sequence.row >= 0 and needed > self._pools.length(sequence.row):
                if self._pools.can_take(needed):
                    self._moves.append(self._pools.move(sequence.row, needed))
                elif self._pools.can_take_later(needed):
                    self._stalled.add(sequence.row)
                    break
                else:
                    preempted.append(self._preempt_last())
        return preempted

    def can_admit(self, newcomer: Sequence, growth_tokens: int) -> bool:
        """Whether there is a row for it, and all could still grow by so many tokens (or to their own end) beside it,
        one after the other: who moves has two slots for a moment.

        True for whoever comes into an empty batch.
        """
        if not self._free_rows or self._stalled:
            return False
        if not self._sequences:
            return True
        now = [*(self._pools.length(s.row) for s in self._sequences), self._pools.length_for(_slot_tokens(newcomer))]
        grown = [self._length_after(s, growth_tokens) for s in (*self._sequences, newcomer)]
        left_behind = max((before for before, after in zip(now, grown, strict=True) if after > before), default=0)
        return sum(grown) + left_behind <= self._pools.capacity_tokens

    def has_slot(self, newcomer: Sequence, beside: int = 0) -> bool:
        """Whether this plan has room for it, beside so many tokens of other things; for who `can_admit`, a later
        plan has if it shrinks the pools."""
        return self._pools.can_take(_slot_tokens(newcomer), beside)

    def admit(self, sequence: Sequence, due: int = 0) -> None:
        """Gives it the lowest free row and slot; `due` as in Sequence."""
        sequence.admit(heapq.heappop(self._free_rows), due)
        self._pools.take(sequence.row, _slot_tokens(sequence))
        self._new_rows.add(sequence.row)
        insort(self._sequences, sequence, key=lambda s: s.order)

    def release(self, sequence: Sequence) -> None:
        """Takes its row; what becomes of the sequence is the caller's."""
        self._sequences.remove(sequence)
        self._pools.release(sequence.row)
        self._releases.append(sequence.row)
        self._stalled.discard(sequence.row)
        heapq.heappush(self._free_rows, sequence.row)

    def take_orders(self, *, is_memory_wanted: bool, beside: int = 0) -> RowOrders:
        """What the device is to do with rows and pools in this plan, beside so many tokens of other things."""
        is_wanted = is_memory_wanted or bool(self._stalled)
        if is_wanted:
            self._moves += self._pools.compact({*self._new_rows, *(move.row for move in self._moves)})
        before = self._pools.slots
        plan_tokens = self._pools.settle(is_wanted=is_wanted, beside=beside)
        pool_slots = self._pools.slots
        changes = bool(self._releases or self._moves or self._new_rows or pool_slots != before)
        orders = RowOrders(self._releases, pool_slots, self._moves, plan_tokens, changes)
        self._releases, self._moves, self._new_rows = [], [], set()
        return orders

    def slot(self, sequence: Sequence) -> Slot:
        """Where a running sequence is."""
        return self._pools.slot(sequence.row)

    def _preempt_last(self) -> Sequence:
        sequence = self._sequences[-1]
        self.release(sequence)
        sequence.preempt()
        return sequence

    def _length_after(self, sequence: Sequence, growth_tokens: int) -> int:
        grown = min(sequence.length + growth_tokens, sequence.most_kv_tokens)
        return self._pools.length_for(max(grown, _slot_tokens(sequence)))

    def check_invariants(self) -> None:
        """Raises AssertionError when the batch contradicts itself."""
        self._pools.check_invariants()
        held = [s.row for s in self._sequences]
        assert sorted(held + self._free_rows) == list(range(self._num_rows)), "a row is lost or held twice"
        assert self._sequences == sorted(self._sequences, key=lambda s: s.order)
        assert all(s.status is Status.RUNNING and s.prefill_left >= 0 for s in self._sequences)
        assert all(s.num_computed <= self._pools.length(s.row) for s in self._sequences), "a slot is too short"


def _slot_tokens(sequence: Sequence) -> int:
    return min(sequence.length + ROOM_TOKENS, sequence.most_kv_tokens)
