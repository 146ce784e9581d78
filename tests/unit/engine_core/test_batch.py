"""The rows, who holds them, and how they grow."""

from array import array

from engine_core.batch import ROOM_TOKENS, Batch, RowOrders
from engine_core.device import RowMove, Slot
from engine_core.kv_pools import KvPools
from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

LENGTHS = (256, 512, 1_024)


def sequence(arrival: int, tokens: int = 5, max_tokens: int = 1_000, priority: int = 0) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = EngineCoreRequest(
        RequestId(f"r{arrival}"), ClientIndex(0), 0, "m", tokens, sampling, arrival_time_s=0.0, priority=priority
    )
    return Sequence(request, array("I", [1] * tokens), arrival, 1_025)


def batch_of(*sequences: Sequence, rows: int = 4, capacity_tokens: int = 4_096) -> Batch:
    batch = Batch(rows, KvPools(LENGTHS, capacity_tokens, rows))
    for each in sequences:
        batch.admit(each)
        batch.check_invariants()
    return batch


def orders(batch: Batch, *, is_memory_wanted: bool = False) -> RowOrders:
    taken = batch.take_orders(is_memory_wanted=is_memory_wanted)
    batch.check_invariants()
    return taken


def grow(each: Sequence, tokens: int) -> None:
    """Until it has so many tokens more."""
    each.planned(each.prefill_left, decodes=True)
    each.sampled(1)
    for _ in range(tokens - 1):
        each.planned(0, decodes=True)
        each.sampled(1)


def test_the_lowest_free_row_is_given_and_the_device_is_told_once_of_free_ones() -> None:
    first, second, third = (sequence(number) for number in range(3))
    batch = batch_of(first, second, third)
    assert [each.row for each in (first, second, third)] == [0, 1, 2]
    assert orders(batch).pool_slots == [3, 0, 0]
    batch.release(second)
    batch.release(first)
    assert batch.has_news
    fourth = sequence(4)
    batch.admit(fourth)
    assert (fourth.row, batch.slot(fourth)) == (0, Slot(0, 0))
    assert orders(batch).releases == [1, 0]
    assert not orders(batch).changes


def test_the_last_rows_are_released_with_the_pools() -> None:
    only = sequence(0)
    batch = batch_of(only)
    orders(batch)
    batch.release(only)
    assert batch.has_news
    assert (orders(batch).releases, batch.has_news) == ([0], False)
    assert not orders(batch).changes


def test_a_sequence_gets_a_slot_in_which_it_can_grow_a_little() -> None:
    assert batch_of(sequence(0, 256 - ROOM_TOKENS)).kv_tokens == 256
    assert batch_of(sequence(0, 257 - ROOM_TOKENS)).kv_tokens == 512
    assert batch_of(sequence(0, 250, max_tokens=7)).kv_tokens == 256, "it will never be longer"


def test_who_outgrows_a_slot_moves() -> None:
    each = sequence(0, 220)
    batch = batch_of(each)
    orders(batch)
    grow(each, 36)
    assert (batch.make_room(), orders(batch).moves) == ([], [])
    grow(each, 1)
    assert batch.make_room() == []
    moved = orders(batch)
    assert (moved.moves, moved.pool_slots, moved.plan_tokens) == ([RowMove(0, Slot(1, 0))], [0, 1, 0], 768)


def test_one_whose_last_token_is_in_flight_needs_no_more_room() -> None:
    each = sequence(0, 220, max_tokens=37)
    batch = batch_of(each)
    grow(each, 36)
    each.planned(0, decodes=True)
    assert (each.length, batch.make_room(), batch.kv_tokens, batch.can_step) == (257, [], 256, [])


def test_the_youngest_of_the_lowest_priority_makes_room() -> None:
    low, older, younger = sequence(0, 220, priority=1), sequence(1, 220), sequence(2, 220)
    batch = batch_of(low, older, younger, capacity_tokens=1_024)
    orders(batch)
    grow(older, 37)
    assert batch.make_room() == [low]
    assert batch.can_step == [younger]
    assert orders(batch).moves == [RowMove(2, Slot(0, 0))], "what is held is moved together, so that the pool shrinks"
    assert batch.make_room() == []
    assert batch.can_step == [older, younger]
    assert orders(batch).pool_slots == [2, 1, 0]


def test_nobody_is_admitted_while_someone_waits_for_a_longer_slot() -> None:
    older, younger = sequence(1, 220), sequence(2, 220, max_tokens=36)
    batch = batch_of(sequence(0), older, younger, capacity_tokens=1_024)
    orders(batch)
    grow(older, 37)
    batch.make_room()
    assert older not in batch.can_step
    assert not batch.can_admit(sequence(3, 2, max_tokens=2), 0)


def test_a_newcomer_must_fit_with_room_to_grow_for_all() -> None:
    def can_admit(tokens: int, growth: int, capacity_tokens: int, max_tokens: int = 1_000) -> bool:
        batch = batch_of(sequence(0, tokens=200), rows=2, capacity_tokens=capacity_tokens)
        return batch.can_admit(sequence(1, tokens, max_tokens), growth)

    assert can_admit(tokens=400, growth=56, capacity_tokens=1_024)
    assert not can_admit(tokens=400, growth=57, capacity_tokens=1_024), "the first one moves: 256 + 512 + 512"
    assert can_admit(tokens=400, growth=57, capacity_tokens=1_280)
    assert can_admit(tokens=470, growth=56, capacity_tokens=1_792)
    assert not can_admit(tokens=470, growth=56, capacity_tokens=1_791), "the second one moves: 256 + 512 + 1024"
    assert can_admit(tokens=470, growth=56, capacity_tokens=1_024, max_tokens=43), "it will never be longer than 512"


def test_nobody_is_admitted_without_a_row_and_everybody_into_an_empty_batch() -> None:
    assert not batch_of(sequence(0), rows=1).can_admit(sequence(1), 0)
    assert batch_of(capacity_tokens=1_024).can_admit(sequence(1, 900), 1_000)
