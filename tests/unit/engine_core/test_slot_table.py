from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.device import Slot
from engine_core.model_runner import PlanError
from engine_core.slot_table import SlotTable


def table_with(*places: tuple[int, Slot], pool_slots: tuple[int, int] = (4, 2)) -> SlotTable:
    table = SlotTable([8, 16])
    table.grow(pool_slots)
    for row, slot in places:
        table.admit(row, slot)
    table.check_invariants()
    return table


def test_a_row_is_in_its_slot_until_it_is_released() -> None:
    table = table_with((3, Slot(0, 2)))
    assert (table.slot_of(3), table.row_in(Slot(0, 2)), table.tokens_of(3), table.highest_row) == (Slot(0, 2), 3, 0, 3)
    table.release(3)
    assert (table.row_in(Slot(0, 2)), table.highest_row, len(table)) == (None, -1, 0)


def test_a_row_that_moves_takes_its_tokens_along_and_leaves_a_free_slot() -> None:
    table = table_with((0, Slot(0, 0)), (1, Slot(0, 1)))
    table.feed(0, 0, 5)
    assert table.move(0, Slot(1, 1)) == Slot(0, 0)
    assert table.move(1, Slot(0, 0)) == Slot(0, 1)
    table.feed(0, 5, 11)
    table.check_invariants()
    assert (table.tokens_of(0), table.slot_of(1)) == (16, Slot(0, 0))


def test_pools_grow_before_they_shrink() -> None:
    table = table_with((0, Slot(0, 3)))
    table.grow((1, 5))
    assert table.pool_slots == (4, 5)
    table.move(0, Slot(0, 0))
    table.shrink((1, 5))
    assert table.pool_slots == (1, 5)


def test_no_pools_are_named_when_no_row_is_held() -> None:
    table = table_with()
    table.grow(())
    table.shrink(())
    assert table.pool_slots == (0, 0)


REFUSED: list[Callable[[SlotTable], object]] = [
    lambda table: table.admit(0, Slot(0, 1)),  # the row is taken
    lambda table: table.admit(-1, Slot(0, 1)),
    lambda table: table.admit(1, Slot(0, 0)),  # the slot is taken
    lambda table: table.admit(1, Slot(0, 4)),  # there are only 4
    lambda table: table.admit(1, Slot(2, 0)),
    lambda table: table.admit(1, Slot(-1, 0)),
    lambda table: table.admit(1, Slot(0, -1)),
    lambda table: table.release(1),
    lambda table: table.move(0, Slot(0, 0)),
    lambda table: table.move(2, Slot(0, 1)),
    lambda table: table.move(7, Slot(0, 0)),  # its 9 tokens do not fit
    lambda table: table.feed(0, 0, 9),  # longer than the slot
    lambda table: table.feed(0, 1, 1),  # leaves a gap
    lambda table: table.feed(7, 8, 1),  # again
    lambda table: table.feed(0, 0, 0),
    lambda table: table.feed(0, 0, -1),
    lambda table: table.fill(7, 1),  # not empty
    lambda table: table.check_holds(7, 10),
    lambda table: table.grow((5,)),
    lambda table: table.grow(()),
    lambda table: table.grow((5, -1)),
    lambda table: table.shrink((4, 1)),  # row 7 is in slot 1
    lambda table: table.shrink(()),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_does_not_fit_is_refused_and_changes_nothing(number: int) -> None:
    table = table_with((0, Slot(0, 0)), (7, Slot(1, 1)))
    table.feed(7, 0, 9)
    if number == 10:
        table.release(0)
    with pytest.raises(PlanError):
        REFUSED[number](table)
    table.check_invariants()
    assert (table.pool_slots, table.tokens_of(7), table.tokens_of(0)) == ((4, 2), 9, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 1), st.integers(-1, 4)), max_size=60))
def test_whatever_is_asked_rows_and_slots_stay_one_to_one(orders: list[tuple[int, int, int, int]]) -> None:
    table = table_with(pool_slots=(3, 2))
    for kind, row, pool, number in orders:
        before = len(table)
        try:
            match kind:
                case 0:
                    table.admit(row, Slot(pool, number))
                case 1:
                    table.release(row)
                case 2:
                    table.move(row, Slot(pool, number))
                case 3:
                    table.feed(row, table.tokens_of(row), number)
                case _:
                    table.shrink((number, 2))
        except PlanError:
            assert len(table) == before
        table.check_invariants()
