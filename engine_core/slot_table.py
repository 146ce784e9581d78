"""Which row has which slot, and how many tokens are computed there. Pure: every plan is checked against it first.

MLX checks no index: a write beyond a buffer corrupts the heap without a word, and two rows in one slot give wrong
answers. So whatever a plan asks for is booked here before any array is touched, and refused when it does not fit.
"""

from collections.abc import Sequence

from engine_core.device import Slot
from engine_core.model_runner import PlanError


class _Held:
    """A row that is taken."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.tokens = 0
        """Computed, or copied there."""


class SlotTable:
    """Owner of rows and slots. All methods raise PlanError for what does not fit, and change nothing then."""

    def __init__(self, pool_lengths: Sequence[int]) -> None:
        self.pool_lengths = tuple(pool_lengths)
        """Tokens that a slot of each pool holds."""
        self.pool_slots = (0,) * len(self.pool_lengths)
        """Slots that each pool has."""
        self._rows: dict[int, _Held] = {}
        self._taken: dict[Slot, int] = {}
        """The row in each slot that one has."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def highest_row(self) -> int:
        """Of the rows that are taken; -1 when none is."""
        return max(self._rows, default=-1)

    def slot_of(self, row: int) -> Slot:
        """Where its KV is."""
        return self._held(row).slot

    def tokens_of(self, row: int) -> int:
        """Tokens in its slot; 0 for a row that is not taken."""
        held = self._rows.get(row)
        return 0 if held is None else held.tokens

    def row_in(self, slot: Slot) -> int | None:
        """Who has the slot."""
        return self._taken.get(slot)

    def release(self, row: int) -> None:
        """The row and its slot are free."""
        del self._taken[self._held(row).slot]
        del self._rows[row]

    def grow(self, pool_slots: Sequence[int]) -> None:
        """Each pool has at least so many slots from now on; none at all may be given when no row is taken."""
        asked = tuple(pool_slots) if pool_slots or self._rows else (0,) * len(self.pool_lengths)
        if len(asked) != len(self.pool_lengths) or min(asked) < 0:
            raise PlanError(f"{len(asked)} pools in the plan, the device has {len(self.pool_lengths)}")
        self.pool_slots = tuple(max(pair) for pair in zip(asked, self.pool_slots, strict=True))

    def shrink(self, pool_slots: Sequence[int]) -> None:
        """Each pool has so many slots from now on."""
        asked = tuple(pool_slots) or (0,) * len(self.pool_lengths)
        for slot, row in self._taken.items():
            if slot.index >= asked[slot.pool]:
                raise PlanError(f"row {row} is in {slot}, but its pool has {asked[slot.pool]} slots")
        self.pool_slots = asked

    def admit(self, row: int, slot: Slot) -> None:
        """The row starts in an empty slot."""
        if row in self._rows or row < 0:
            raise PlanError(f"row {row} is taken")
        self._check_free(slot)
        self._rows[row] = _Held(slot)
        self._taken[slot] = row

    def move(self, row: int, slot: Slot) -> Slot:
        """The row goes to another slot; returns the one it leaves."""
        held = self._held(row)
        self._check_free(slot)
        if held.tokens > self.pool_lengths[slot.pool]:
            raise PlanError(f"row {row} has {held.tokens} tokens, too many for {slot}")
        left, held.slot = held.slot, slot
        del self._taken[left]
        self._taken[slot] = row
        return left

    def fill(self, row: int, tokens: int) -> None:
        """So many tokens are copied to the start of a row that has none."""
        self.feed(row, 0, tokens)

    def feed(self, row: int, start: int, tokens: int) -> None:
        """So many tokens are computed from position `start` on, which is what the row has already."""
        held = self._held(row)
        if tokens < 1 or start != held.tokens:
            raise PlanError(f"row {row}: {tokens} tokens at {start}, but the row has {held.tokens}")
        if start + tokens > self.pool_lengths[held.slot.pool]:
            raise PlanError(f"row {row}: {start + tokens} tokens do not fit {held.slot}")
        held.tokens += tokens

    def check_holds(self, row: int, tokens: int) -> None:
        """Asks whether the row has so many tokens."""
        if self._held(row).tokens < tokens:
            raise PlanError(f"row {row} has {self._held(row).tokens} tokens, not {tokens}")

    def _held(self, row: int) -> _Held:
        if row not in self._rows:
            raise PlanError(f"row {row} is not taken")
        return self._rows[row]

    def _check_free(self, slot: Slot) -> None:
        if not (0 <= slot.pool < len(self.pool_slots) and 0 <= slot.index < self.pool_slots[slot.pool]):
            raise PlanError(f"there is no {slot}: the pools have {self.pool_slots} slots")
        if slot in self._taken:
            raise PlanError(f"row {self._taken[slot]} is in {slot}")

    def check_invariants(self) -> None:
        """Asserts that rows and slots belong to each other one to one, and that no slot holds more than it can."""
        assert self._taken == {held.slot: row for row, held in self._rows.items()}
        for held in self._rows.values():
            assert 0 <= held.slot.index < self.pool_slots[held.slot.pool]
            assert 0 <= held.tokens <= self.pool_lengths[held.slot.pool]
