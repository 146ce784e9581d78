"""How large the slot buffers are: a pure decision."""

import msgspec

from engine_core.kv_budget import round_kv_length


class SlotShape(msgspec.Struct, frozen=True):
    """`rows` slots of `length` tokens each."""

    rows: int = 0
    length: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that fit in all."""
        return self.rows * self.length


def grown(shape: SlotShape, rows: int, length: int, capacity_tokens: int, max_rows: int) -> SlotShape:
    """The shape to use for `rows` slots of `length` tokens; `shape` itself where that is large enough.

    Lengths grow by steps of 256: one copy of the cache in 256 decodes costs under 1 % of them. Rows are doubled, so
    that requests that arrive one by one do not copy the cache each time. What is not asked for is given up where
    both would exceed `capacity_tokens`.
    """
    if rows <= shape.rows and length <= shape.length:
        return shape
    needed_length = round_kv_length(length)
    new_length = max(needed_length, shape.length)
    if rows * new_length > capacity_tokens:
        new_length = needed_length
    affordable_rows = min(max_rows, capacity_tokens // new_length)
    wished_rows = shape.rows if rows <= shape.rows else 2 * shape.rows
    return SlotShape(max(rows, min(wished_rows, affordable_rows)), new_length)
