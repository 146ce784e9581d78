"""Blocks and rows in one memory."""

import pytest
from sequence_samples import sequence_of

from engine_core.device import RowCopy
from engine_core.prefix_cache import PrefixCache
from engine_core.sequence import Sequence
from protocol.prefix_hash import BLOCK_TOKENS

CAPACITY = 16 * BLOCK_TOKENS


def running(blocks: int, row: int = 0, last: int = 0) -> Sequence:
    """A sequence of so many blocks and one token more, which runs."""
    return sequence_of([7] * blocks * BLOCK_TOKENS + [last], row)


def cache_with(blocks: int) -> PrefixCache:
    """The blocks of one sequence are stored, and the device knows."""
    return cache_of(running(blocks))


def cache_of(sequence: Sequence) -> PrefixCache:
    cache, whole = PrefixCache(CAPACITY), sequence.prefill_left // BLOCK_TOKENS
    sequence.planned(sequence.prefill_left, decodes=False)
    cache.save([sequence])
    assert len(cache.take_orders(0, [sequence.row]).saves) == whole
    return cache


@pytest.mark.parametrize(("rows_tokens", "restored"), [(256, 12), (512, 8), (768, 4), (1_024, 0)])
def test_what_is_restored_fits_beside_the_rows_and_stays_until_it_is_copied(rows_tokens: int, restored: int) -> None:
    cache, sequence = cache_with(12), running(12, row=1)
    cache.restore(sequence, [sequence], rows_tokens)
    orders = cache.take_orders(rows_tokens, ())
    assert sequence.num_computed == restored * BLOCK_TOKENS
    block_ids = [block_id for restore in orders.restores for block_id in restore.block_ids]
    assert len(block_ids) == restored
    assert not set(block_ids) & set(orders.drops)
    after = cache.take_orders(rows_tokens, ())
    cache.check_invariants(rows_tokens)
    assert len(orders.drops) + len(after.drops) == max(0, 12 - (CAPACITY - max(512, rows_tokens)) // BLOCK_TOKENS)


def test_sequences_that_restore_the_same_blocks_count_them_once() -> None:
    cache, first, second = cache_with(8), running(8, row=0, last=1), running(8, row=1, last=2)
    cache.restore(first, [first, second], 512)
    assert cache.restored_tokens == 512
    cache.restore(second, [first, second], 512)
    assert cache.restored_tokens == 512
    assert [len(restore.block_ids) for restore in cache.take_orders(512, ()).restores] == [8, 8]
    cache.check_invariants(512)


def test_what_went_before_the_device_heard_of_it_is_neither_saved_nor_dropped() -> None:
    cache, sequence = PrefixCache(CAPACITY), running(12)
    sequence.planned(12 * BLOCK_TOKENS, decodes=False)
    cache.save([sequence])
    orders = cache.take_orders(768, [0])
    assert [save.start for save in orders.saves] == [0, 64, 128, 192]
    assert orders.drops == []


def test_a_block_is_saved_once_whoever_computes_it() -> None:
    cache = PrefixCache(CAPACITY)
    for row in range(2):
        sequence = running(3, row)
        sequence.planned(130, decodes=False)
        cache.save([sequence])
        cache.save([sequence])
    assert [(save.row, save.start) for save in cache.take_orders(256, [0]).saves] == [(0, 0), (0, 64)]


def test_who_waits_for_a_prefix_waits_no_longer_than_for_its_computation() -> None:
    cache, computing, waiting = PrefixCache(CAPACITY), running(3, row=0, last=1), running(3, row=1, last=2)
    assert cache.is_coming(waiting, [computing], is_overdue=False)
    computing.planned(100, decodes=False)
    assert cache.is_coming(waiting, [computing], is_overdue=False)
    computing.planned(92, decodes=False)
    assert not cache.is_coming(waiting, [computing], is_overdue=False)
    assert cache.available_tokens(waiting, [computing]) == 192
    assert cache.available_tokens(waiting, []) == 0, "nothing is stored"


@pytest.mark.parametrize(("left", "waits"), [(15, False), (16, True), (17, True)])
def test_a_few_tokens_are_not_waited_for(left: int, waits: bool) -> None:
    cache, computing = PrefixCache(CAPACITY), sequence_of([*range(100), 500])
    computing.planned(100 - left, decodes=False)
    waiting = sequence_of([*range(100), 501], row=1, waits=True)
    assert cache.is_coming(waiting, [computing], is_overdue=False) == waits


def test_who_is_overdue_waits_for_none_that_came_later() -> None:
    cache, later = PrefixCache(CAPACITY), running(3, row=5)
    waiting = sequence_of([7] * 200, row=1, waits=True)
    assert cache.is_coming(waiting, [later], is_overdue=False)
    assert not cache.is_coming(waiting, [later], is_overdue=True)
    assert cache.is_coming(waiting, [later, running(3, row=0)], is_overdue=True)


def test_a_lower_priority_and_another_salt_are_not_waited_for() -> None:
    cache, waiting = PrefixCache(CAPACITY), sequence_of([7] * 200, row=1, waits=True)
    others = [sequence_of([7] * 200, row=2, priority=1), sequence_of([7] * 200, row=3, salt="s")]
    assert not cache.is_coming(waiting, others, is_overdue=False)
    for other in others:
        other.planned(199, decodes=False)
    assert cache.available_tokens(waiting, others[1:]) == 0
    assert cache.available_tokens(waiting, others[:1]) == 199, "what it has computed is free for all"


def test_a_row_that_has_more_than_is_stored_is_copied() -> None:
    donor = sequence_of([*range(100), 500])
    cache = cache_of(donor)
    waiting = sequence_of([*range(100), 501, 502], row=1)
    assert cache.available_tokens(waiting, [donor]) == 100
    cache.restore(waiting, [donor, waiting], 512)
    orders = cache.take_orders(512, ())
    assert (orders.copies, orders.restores) == ([RowCopy(0, 1, 100)], [])
    assert waiting.num_computed == waiting.cached_tokens == cache.hits_tokens_total == 100


def test_what_is_stored_is_restored_to_the_token_when_no_row_has_more() -> None:
    donor = sequence_of([*range(200), 500])
    cache = cache_of(donor)
    waiting = sequence_of([*range(150), 501, 502], row=1)
    cache.restore(waiting, [donor, waiting], 512)
    (restore,) = cache.take_orders(512, ()).restores
    assert (restore.row, len(restore.block_ids), restore.tokens) == (1, 3, 150)
    assert waiting.num_computed == 150


def test_a_row_that_was_admitted_by_the_same_plan_is_not_copied_from() -> None:
    cache, donor = PrefixCache(CAPACITY), sequence_of([*range(100), 500], row=5)
    donor.planned(100, decodes=False)
    first, second, third = (sequence_of([*range(100), 501 + row], row) for row in (1, 2, 3))
    for newcomer in (first, second):
        cache.restore(newcomer, [first, second, donor], 512)
    assert cache.take_orders(512, ()).copies == [RowCopy(5, 1, 100), RowCopy(5, 2, 100)]
    cache.restore(third, [first, second, third, donor], 512)
    assert cache.take_orders(512, ()).copies == [RowCopy(1, 3, 100)], "now it has what was copied to it"


def test_too_few_tokens_are_not_copied() -> None:
    donor = sequence_of([*range(7), *[500] * 100])
    cache = cache_of(donor)
    for row, shared, copied in ((1, 7, 0), (2, 8, 8)):
        donor = sequence_of([*range(shared), *[500 + row] * 100])
        donor.planned(shared, decodes=False)
        waiting = sequence_of([*range(shared), 600, 601], row)
        cache.restore(waiting, [donor, waiting], 512)
        assert waiting.num_computed == copied
    assert cache.take_orders(512, ()).copies == [RowCopy(0, 2, 8)]


def test_tokens_that_are_not_known_yet_are_not_shared() -> None:
    donor = sequence_of([*range(20)])
    donor.planned(19, decodes=True)
    donor.planned(0, decodes=True)
    assert donor.num_computed == 21
    as_long = sequence_of([*range(20), 500], row=2)
    as_long.planned(20, decodes=False)
    for donors in ([donor], [as_long, donor], [donor, as_long]):
        assert PrefixCache(CAPACITY).available_tokens(sequence_of([*range(30)], row=1), donors) == 20


def test_a_part_that_many_share_protects_none_of_their_blocks() -> None:
    cache = PrefixCache(CAPACITY)
    for row in range(20):
        sequence = sequence_of([*range(24), *[100 + row] * 60])
        cache.restore(sequence, [sequence], 256)
        assert sequence.num_computed == (24 if row else 0)
        sequence.planned(sequence.prefill_left, decodes=False)
        cache.save([sequence])
        cache.take_orders(256, ())
        cache.check_invariants(256)
    assert not cache._index._protected
    assert len(cache._index) == (CAPACITY - 512) // BLOCK_TOKENS


def test_changes_are_what_was_stored_and_what_went() -> None:
    cache, sequence = cache_with(4), running(4)
    assert list(cache.take_changes().items()) == [(block_hash, True) for block_hash in sequence.chain[1:]]
    cache.take_orders(CAPACITY, ())
    assert cache.take_changes() == dict.fromkeys(sequence.chain[1:], False)
    assert cache.take_changes() == {}
