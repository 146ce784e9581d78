"""When blocks are copied out of rows."""

from engine_core.device import BlockId, BlockSave
from engine_core.pending_saves import BLOCKS_TOGETHER, PLANS_TOGETHER, PendingSave, PendingSaves


def pending(number: int, row: int = 0) -> PendingSave:
    return PendingSave(BlockSave(BlockId(number), row, 0), None)


def ids(taken: list[PendingSave]) -> list[int]:
    return [each.save.block_id for each in taken]


def test_blocks_are_taken_together_after_some_plans() -> None:
    saves = PendingSaves()
    taken = []
    for plan in range(3 * PLANS_TOGETHER):
        saves.add(pending(plan, row=plan % 8))
        taken.append(ids(saves.take([], is_wanted=False)))
    assert [each for each in taken if each] == [
        list(range(start, start + PLANS_TOGETHER)) for start in (0, PLANS_TOGETHER, 2 * PLANS_TOGETHER)
    ]


def test_all_are_taken_when_one_of_the_rows_goes_or_somebody_wants_a_block() -> None:
    saves = PendingSaves()
    for number in range(3):
        saves.add(pending(number, row=number))
    assert saves.take([5], is_wanted=False) == []
    assert ids(saves.take([5, 2], is_wanted=False)) == [0, 1, 2]
    saves.add(pending(7))
    assert ids(saves.take([], is_wanted=True)) == [7]
    assert saves.take([0], is_wanted=True) == []


def test_many_are_not_kept_waiting() -> None:
    saves = PendingSaves()
    for number in range(BLOCKS_TOGETHER - 1):
        saves.add(pending(number))
    assert saves.take([], is_wanted=False) == []
    saves.add(pending(BLOCKS_TOGETHER))
    assert len(saves.take([], is_wanted=False)) == BLOCKS_TOGETHER


def test_the_wait_begins_with_the_oldest() -> None:
    saves = PendingSaves()
    for _ in range(2 * PLANS_TOGETHER):
        assert saves.take([], is_wanted=False) == []
    saves.add(pending(1))
    for _ in range(PLANS_TOGETHER - 1):
        assert saves.take([], is_wanted=False) == []
    assert ids(saves.take([], is_wanted=False)) == [1]


def test_what_is_discarded_is_not_taken() -> None:
    saves = PendingSaves()
    saves.add(pending(1))
    assert saves.discard(BlockId(1))
    assert not saves.discard(BlockId(1))
    assert saves.take([0], is_wanted=True) == []
