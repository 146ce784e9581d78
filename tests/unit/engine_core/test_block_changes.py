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
            for name, is_stored in log.take().items():
                assert (name in known) != is_stored, "told twice, or never"
                (known.add if is_stored else known.remove)(name)
            assert known == {each for _, each in places}
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
    assert log.take() == {}


def test_a_parent_is_reported_before_its_child() -> None:
    log = ChangeLog()
    for name in reversed(NAMES):
        log.stored(name)
    assert list(log.take().items()) == [(name, True) for name in reversed(NAMES)]
