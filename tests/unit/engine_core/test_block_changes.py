"""What is reported of the store: a reader that takes every report knows what is there."""

import hypothesis.strategies as st
from hypothesis import given

from engine_core.block_changes import ChangeLog
from protocol.prefix_hash import BlockHash

NAMES = [BlockHash(bytes([letter])) for letter in b"abcd"]
MOVES = st.lists(st.tuples(st.sampled_from(["ram", "ssd", "take"]), st.sampled_from(NAMES)), max_size=60)


@given(MOVES)
def test_reports_add_up_to_what_is_stored(moves: list[tuple[str, BlockHash]]) -> None:
    log, places, known = ChangeLog(), set(), set[BlockHash]()
    for where, name in moves:
        if where == "take":
            changes = log.take()
            if changes is not None:
                assert not known & set(changes.stored), "told twice"
                assert known >= set(changes.evicted), "never told"
                known = (known | set(changes.stored)) - set(changes.evicted)
            assert known == {name for _, name in places}
        elif (where, name) in places:
            places.remove((where, name))
            log.evicted(name)
        else:
            places.add((where, name))
            log.stored(name)
        log.check_invariants()


def test_what_came_and_went_in_between_is_not_reported() -> None:
    log = ChangeLog()
    log.stored(NAMES[0])
    log.evicted(NAMES[0])
    assert log.take() is None


def test_a_parent_is_reported_before_its_child() -> None:
    log = ChangeLog()
    for name in reversed(NAMES):
        log.stored(name)
    changes = log.take()
    assert changes is not None and changes.stored == NAMES[::-1]
