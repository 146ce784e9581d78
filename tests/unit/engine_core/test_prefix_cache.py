"""Blocks and rows in one memory."""

from array import array

import pytest

from engine_core.prefix_cache import PrefixCache
from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import BLOCK_TOKENS, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

CAPACITY = 16 * BLOCK_TOKENS


def running(blocks: int, row: int = 0, last: int = 0) -> Sequence:
    """A sequence of so many blocks and one token more, which runs."""
    prompt = array("I", [7] * blocks * BLOCK_TOKENS + [last])
    request = EngineCoreRequest(RequestId(f"r{row}"), ClientIndex(0), 0, "m", len(prompt), SamplingParams(5), 0.0)
    sequence = Sequence(request, prompt, row, 10_000, chain=prefix_chain(prefix_root("m", "", ""), prompt))
    sequence.admit(row)
    return sequence


def cache_with(blocks: int) -> PrefixCache:
    """The blocks of one sequence are stored, and the device knows."""
    cache, sequence = PrefixCache(CAPACITY), running(blocks)
    sequence.prefilled(blocks * BLOCK_TOKENS)
    cache.save([sequence])
    assert len(cache.take_orders(0).saves) == blocks
    cache.plan_done()
    return cache


@pytest.mark.parametrize(("rows_tokens", "restored"), [(256, 12), (512, 8), (768, 4), (1_024, 0)])
def test_what_is_restored_fits_beside_the_rows_and_stays_until_it_is_copied(rows_tokens: int, restored: int) -> None:
    cache, sequence = cache_with(12), running(12, row=1)
    cache.restore(sequence, rows_tokens)
    orders = cache.take_orders(rows_tokens)
    cache.check_invariants(rows_tokens)
    assert sequence.num_computed == restored * BLOCK_TOKENS
    block_ids = [block_id for restore in orders.restores for block_id in restore.block_ids]
    assert len(block_ids) == restored
    assert not set(block_ids) & set(orders.drops)
    cache.plan_done()
    cache.check_invariants(None)
    after = cache.take_orders(rows_tokens)
    assert len(orders.drops) + len(after.drops) == max(0, 12 - (CAPACITY - max(512, rows_tokens)) // BLOCK_TOKENS)


def test_sequences_that_restore_the_same_blocks_count_them_once() -> None:
    cache, first, second = cache_with(8), running(8, row=0, last=1), running(8, row=1, last=2)
    cache.restore(first, 512)
    assert cache.restored_tokens == 512
    cache.restore(second, 512)
    assert cache.restored_tokens == 512
    assert [len(restore.block_ids) for restore in cache.take_orders(512).restores] == [8, 8]
    cache.check_invariants(512)


def test_what_went_before_the_device_heard_of_it_is_neither_saved_nor_dropped() -> None:
    cache, sequence = PrefixCache(CAPACITY), running(12)
    sequence.prefilled(12 * BLOCK_TOKENS)
    cache.save([sequence])
    orders = cache.take_orders(768)
    assert [save.start for save in orders.saves] == [0, 64, 128, 192]
    assert orders.drops == []


def test_a_block_is_saved_once_whoever_computes_it() -> None:
    cache = PrefixCache(CAPACITY)
    for row in range(2):
        sequence = running(3, row)
        sequence.prefilled(130)
        cache.save([sequence])
        cache.save([sequence])
    assert [(save.row, save.start) for save in cache.take_orders(256).saves] == [(0, 0), (0, 64)]


def test_who_waits_for_a_block_waits_no_longer_than_for_its_computation() -> None:
    cache, computing, waiting = PrefixCache(CAPACITY), running(3, row=0, last=1), running(3, row=1, last=2)
    assert cache.is_coming(waiting, [computing])
    computing.prefilled(100)
    cache.save([computing])
    assert cache.is_coming(waiting, [computing])
    computing.prefilled(92)
    assert not cache.is_coming(waiting, [computing]), "not stored, and nobody is about to compute it"
    cache.save([computing])
    assert not cache.is_coming(waiting, [computing])
    assert cache.stored_tokens(waiting) == 192


def test_nobody_waits_where_nothing_can_be_stored() -> None:
    cache = PrefixCache(CAPACITY)
    cache.take_orders(CAPACITY)
    assert not cache.is_coming(running(3, row=1), [running(3, row=0)])
