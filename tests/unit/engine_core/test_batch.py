"""The rows of the KV cache and who holds them."""

from array import array

from engine_core.batch import Batch
from engine_core.kv_budget import KvBudget
from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams


def sequence(arrival: int, tokens: int = 5, max_tokens: int = 1_000, priority: int = 0) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = EngineCoreRequest(
        RequestId(f"r{arrival}"), ClientIndex(0), 0, "m", tokens, sampling, arrival_time_s=0.0, priority=priority
    )
    return Sequence(request, array("I", [1] * tokens), arrival, 10_000)


def batch_of(*sequences: Sequence, rows: int = 4, capacity_tokens: int = 2_048) -> Batch:
    batch = Batch(rows, KvBudget(capacity_tokens))
    for each in sequences:
        batch.admit(each)
        batch.check_invariants()
    return batch


def test_the_lowest_free_row_is_given_and_the_device_is_told_once_of_free_ones() -> None:
    first, second, third = (sequence(number) for number in range(3))
    batch = batch_of(first, second, third)
    assert [each.row for each in (first, second, third)] == [0, 1, 2]
    batch.release(second)
    batch.release(first)
    assert batch.kv_rows == 3
    fourth = sequence(4)
    batch.admit(fourth)
    assert fourth.row == 0
    assert batch.take_releases() == [1, 0]
    assert not batch.has_releases


def test_the_last_is_the_youngest_of_the_lowest_priority() -> None:
    low, older, younger = sequence(0, priority=1), sequence(1), sequence(2)
    batch = batch_of(low, older, younger)
    assert batch.last is low
    batch.release(low)
    assert batch.last is younger


def test_the_cache_must_hold_rows_times_the_longest() -> None:
    batch = batch_of(sequence(0, tokens=10), sequence(1, tokens=300))
    assert (batch.kv_rows, batch.kv_length) == (2, 512)
    assert batch_of().kv_rows == batch_of().kv_length == 0


def test_a_newcomer_must_fit_with_room_to_grow_for_all() -> None:
    def can_admit(tokens: int, room: int, max_tokens: int = 1_000) -> bool:
        batch = batch_of(sequence(0, tokens=200), rows=2, capacity_tokens=1_024)
        return batch.can_admit(sequence(1, tokens, max_tokens), room)

    assert can_admit(tokens=500, room=12)
    assert not can_admit(tokens=500, room=13)
    assert can_admit(tokens=500, room=100, max_tokens=13), "it will never be longer than 512"
    assert not can_admit(tokens=10, room=313), "the other one would have no room"


def test_nobody_is_admitted_without_a_row() -> None:
    assert not batch_of(sequence(0), rows=1).can_admit(sequence(1), 0)


def test_a_batch_that_outgrew_the_cache_says_so() -> None:
    grown = sequence(1, tokens=512)
    batch = batch_of(sequence(0), grown, capacity_tokens=1_024)
    assert batch.fits
    grown.prefilled(511)
    grown.decoded(7)
    assert not batch.fits
