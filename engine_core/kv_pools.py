"""Where in the KV cache each row is, and how large the cache is: pools of slots, one pool for each length.

A sequence has a slot of the smallest pool that holds it, so a long one does not make short ones dearer; when it
outgrows its slot it moves to a longer one. The device copies for a move, and when a pool that is in use grows or
shrinks; so pools grow by doubling and shrink late. While it copies it holds both sizes: a plan is bounded by the
larger of the slots before and after, pool by pool.
"""

from collections.abc import Collection, Sequence
from itertools import count

from engine_core.device import RowMove, Slot

SLACK_SHARE = 0.5
"""Pools grow by more than is asked for while all take no more than this share of the capacity."""
SHRINK_FACTOR = 4
"""A pool with so many times the slots that are used gives half of them back, or more."""


class KvPools:
    """Owner of all slots, and of the number that each pool has."""

    def __init__(self, lengths: Sequence[int], capacity_tokens: int, max_rows: int) -> None:
        """`lengths` in tokens, ascending. Raises ValueError when not even one of the longest slots fits."""
        if not lengths or list(lengths) != sorted(set(lengths)):
            raise ValueError(f"lengths of slots must ascend: {list(lengths)}")
        if lengths[-1] > capacity_tokens:
            raise ValueError(f"a KV cache of {capacity_tokens} tokens has no room for a slot of {lengths[-1]} tokens")
        self.lengths = tuple(lengths)
        self.capacity_tokens = capacity_tokens
        self._max_rows = max_rows
        self._slots = [0] * len(lengths)
        """Of each pool, since the last plan."""
        self._held: dict[int, Slot] = {}
        """By row."""
        self._used: list[set[int]] = [set() for _ in lengths]
        """Indices, by pool."""

    def pool_for(self, tokens: int) -> int:
        """The smallest whose slots hold so many tokens; the longest when none does."""
        return next((pool for pool, length in enumerate(self.lengths) if tokens <= length), len(self.lengths) - 1)

    def length_for(self, tokens: int) -> int:
        """Of a slot that holds so many tokens."""
        return self.lengths[self.pool_for(tokens)]

    def slot(self, row: int) -> Slot:
        """Where the row is."""
        return self._held[row]

    def length(self, row: int) -> int:
        """Tokens that the row's slot holds."""
        return self.lengths[self._held[row].pool]

    @property
    def held_tokens(self) -> int:
        """What the held slots alone would take."""
        return sum(len(used) * length for used, length in zip(self._used, self.lengths, strict=True))

    @property
    def plan_tokens(self) -> int:
        """What the plan in the making takes at least: of each pool the slots before, or up to the highest held now."""
        return self._larger_tokens(self._slots, self._tops())

    @property
    def slots(self) -> list[int]:
        """That each pool has since the last plan."""
        return list(self._slots)

    @property
    def is_idle(self) -> bool:
        """Whether no slot is held, and no pool has any."""
        return not self._held and not any(self._slots)

    def can_take(self, tokens: int, beside: int = 0) -> bool:
        """Whether this plan has room for a slot of so many tokens, and `beside` tokens of other things."""
        slot = self._lowest(self.pool_for(tokens))
        more = max(0, slot.index + 1 - max(self._slots[slot.pool], self._top(slot.pool)))
        return self.plan_tokens + more * self.lengths[slot.pool] + beside <= self.capacity_tokens

    def can_take_later(self, tokens: int) -> bool:
        """Whether there would be room for another such slot when all pools were as small as they can be."""
        return self.held_tokens + self.length_for(tokens) <= self.capacity_tokens

    def take(self, row: int, tokens: int) -> Slot:
        """The lowest free slot of the smallest pool that holds so many tokens; the row had none."""
        assert row not in self._held, row
        return self._put(row, self._lowest(self.pool_for(tokens)))

    def move(self, row: int, tokens: int) -> RowMove:
        """The row goes to the lowest free slot of the smallest pool that holds so many tokens."""
        target = self._lowest(self.pool_for(tokens))
        self.release(row)
        return RowMove(row, self._put(row, target))

    def release(self, row: int) -> None:
        """Its slot is free."""
        slot = self._held.pop(row)
        self._used[slot.pool].remove(slot.index)

    def compact(self, except_rows: Collection[int]) -> list[RowMove]:
        """The highest rows of each pool go to its lowest free slots, so that the pool can be cut behind them."""
        moves = []
        for row, slot in sorted(self._held.items(), key=lambda item: item[1], reverse=True):
            lowest = self._lowest(slot.pool)
            if row not in except_rows and lowest < slot:
                self.release(row)
                moves.append(RowMove(row, self._put(row, lowest)))
        return moves

    def settle(self, *, is_wanted: bool, beside: int = 0) -> int:
        """Decides how many slots each pool has from now on; returns what the larger of before and after takes.

        When memory `is_wanted` they are as few as can be. `beside` are tokens of other things that need room too.
        """
        before, tops = self._slots, self._tops()
        after = [_resized(*pair, is_wanted=is_wanted) for pair in zip(before, tops, strict=True)]
        for pool in range(len(after)):
            if 0 < before[pool] < tops[pool] and not is_wanted:
                self._add_slack(before, after, pool, beside)
        self._slots = after
        return self._larger_tokens(before, after)

    def _add_slack(self, before: list[int], after: list[int], pool: int, beside: int) -> None:
        needed, after[pool] = after[pool], max(after[pool], min(2 * before[pool], self._max_rows))
        tokens = self._larger_tokens(before, after)
        if tokens + beside > self.capacity_tokens or tokens > self.capacity_tokens * SLACK_SHARE:
            after[pool] = needed

    def _put(self, row: int, slot: Slot) -> Slot:
        self._held[row] = slot
        self._used[slot.pool].add(slot.index)
        return slot

    def _lowest(self, pool: int) -> Slot:
        return Slot(pool, next(index for index in count() if index not in self._used[pool]))

    def _top(self, pool: int) -> int:
        return max(self._used[pool], default=-1) + 1

    def _tops(self) -> list[int]:
        return [self._top(pool) for pool in range(len(self.lengths))]

    def _larger_tokens(self, before: Sequence[int], after: Sequence[int]) -> int:
        return sum(max(pair) * length for *pair, length in zip(before, after, self.lengths, strict=True))

    def check_invariants(self) -> None:
        """Raises AssertionError when the pools contradict themselves."""
        assert len(self._held) == len(set(self._held.values())) == sum(len(used) for used in self._used)
        assert all(slot.index in self._used[slot.pool] for slot in self._held.values())
        assert self.plan_tokens <= self.capacity_tokens, "the slots that are held exceed the KV cache"


def _resized(slots: int, top: int, *, is_wanted: bool) -> int:
    if is_wanted or not top or top > slots:
        return top
    return 2 * top if slots >= SHRINK_FACTOR * top else slots
