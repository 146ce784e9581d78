"""Which slots the pools have, and who has them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine_core.device import RowMove, Slot
from engine_core.kv_pools import SHRINK_FACTOR, KvPools

LENGTHS = (256, 512, 1_024)


def pools(capacity_tokens: int = 65_536, max_rows: int = 64) -> KvPools:
    return KvPools(LENGTHS, capacity_tokens, max_rows)


def test_the_smallest_pool_that_holds_the_tokens() -> None:
    assert [pools().length_for(tokens) for tokens in (1, 256, 257, 512, 513, 1_024)] == [256, 256, 512, 512, 1024, 1024]


@pytest.mark.parametrize("lengths", [(), (512, 256), (256, 256), (256, 2_048)])
def test_lengths_that_cannot_be_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="slot"):
        KvPools(lengths, 1_024, 4)


def test_slots_are_paid_for_at_the_larger_size_of_a_plan() -> None:
    cache = pools()
    for row in range(3):
        cache.take(row, 100)
    assert cache.plan_tokens == cache.settle(is_wanted=False) == 3 * 256
    cache.release(2)
    cache.move(1, 300)
    assert cache.plan_tokens == 3 * 256 + 512
    assert cache.settle(is_wanted=True) == 3 * 256 + 512
    assert cache.slots == [1, 1, 0]
    assert cache.plan_tokens == cache.held_tokens == 256 + 512


def test_a_pool_that_is_in_use_grows_by_doubling_so_that_few_plans_copy() -> None:
    cache, changes = pools(), 0
    for row in range(40):
        before = cache.slots
        cache.take(row, 100)
        cache.settle(is_wanted=False)
        changes += cache.slots != before
    assert cache.slots == [64, 0, 0]
    assert changes == 7


def test_no_slack_is_taken_beyond_the_share_of_it_or_beside_what_must_stay() -> None:
    def slots_after(capacity_tokens: int, beside: int = 0, max_rows: int = 64) -> int:
        cache = pools(capacity_tokens, max_rows)
        for row in range(2):
            cache.take(row, 100)
        cache.settle(is_wanted=False)
        cache.take(2, 100)
        cache.settle(is_wanted=False, beside=beside)
        return cache.slots[0]

    assert slots_after(2_048) == 4
    assert slots_after(2_047) == 3
    assert slots_after(2_048, beside=1_025) == 3
    assert slots_after(2_048, max_rows=3) == 3


def test_pools_shrink_late_or_when_memory_is_wanted_and_vanish_when_unused() -> None:
    cache = pools()
    for row in range(2 * SHRINK_FACTOR):
        cache.take(row, 100)
    cache.settle(is_wanted=False)
    for row in range(3, 2 * SHRINK_FACTOR):
        cache.release(row)
    cache.settle(is_wanted=False)
    assert cache.slots == [8, 0, 0]
    cache.release(2)
    cache.settle(is_wanted=False)
    assert cache.slots == [4, 0, 0]
    cache.settle(is_wanted=True)
    assert cache.slots == [2, 0, 0]
    cache.release(0)
    cache.release(1)
    assert not cache.is_idle
    cache.settle(is_wanted=False)
    assert cache.is_idle


def test_the_highest_rows_fill_the_gaps() -> None:
    cache = pools()
    for row in range(6):
        cache.take(row, 100)
    for row in (0, 2, 3):
        cache.release(row)
    assert cache.compact(except_rows=()) == [RowMove(5, Slot(0, 0)), RowMove(4, Slot(0, 2))]
    assert cache.compact(except_rows=()) == []


def test_who_must_stay_is_not_moved() -> None:
    cache = pools()
    for row in range(3):
        cache.take(row, 100)
    cache.release(0)
    assert cache.compact(except_rows={2}) == [RowMove(1, Slot(0, 0))]


@given(st.data())
def test_whatever_is_asked_for_in_turn_is_kept_within_the_memory(data: st.DataObject) -> None:
    cache, held = KvPools(LENGTHS, data.draw(st.sampled_from([1_024, 2_000, 5_000])), 8), set[int]()
    for _ in range(30):
        before = cache.slots
        for _ in range(data.draw(st.integers(0, 4))):
            row, tokens = data.draw(st.integers(0, 7)), data.draw(st.sampled_from([10, 300, 1_000]))
            if row in held and tokens > cache.length(row) and cache.can_take(tokens):
                cache.move(row, tokens)
            elif row in held:
                cache.release(row)
                held.remove(row)
            elif cache.can_take(tokens):
                cache.take(row, tokens)
                held.add(row)
        wanted = data.draw(st.booleans())
        if wanted:
            cache.compact(except_rows=())
        larger = cache.settle(is_wanted=wanted)
        cache.check_invariants()
        pairs = zip(before, cache.slots, LENGTHS, strict=True)
        assert larger == sum(max(b, a) * length for b, a, length in pairs) <= cache.capacity_tokens
        assert not wanted or cache.plan_tokens == cache.held_tokens
        assert all(cache.slot(row).index < cache.slots[cache.slot(row).pool] for row in held)
