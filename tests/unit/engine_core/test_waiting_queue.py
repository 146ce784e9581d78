"""Who waits, and in which order."""

from array import array

from engine_core.sequence import Sequence
from engine_core.waiting_queue import WaitingQueue
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams


def request(arrival: int, priority: int, tokens: int) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=5)
    return EngineCoreRequest(
        RequestId(f"r{arrival}"), ClientIndex(0), 0, "m", tokens, sampling, arrival_time_s=0.0, priority=priority
    )


def sequence(arrival: int, priority: int = 0, tokens: int = 5) -> Sequence:
    return Sequence(request(arrival, priority, tokens), array("I", [1] * tokens), arrival, 100, due=1_000)


def test_priority_goes_before_arrival() -> None:
    waiting = WaitingQueue()
    late, early, urgent = sequence(2), sequence(1), sequence(3, priority=-1)
    for each in (late, early, urgent):
        waiting.add(each)
        waiting.check_invariants()
    assert list(waiting) == [urgent, early, late]
    assert waiting.first(2) == [urgent, early]


def test_anyone_can_leave_and_the_tokens_that_wait_are_counted() -> None:
    waiting = WaitingQueue()
    sequences = [sequence(number, tokens=number + 1) for number in range(5)]
    for each in sequences:
        waiting.add(each)
    assert waiting.queued_tokens == 0 + 1 + 2 + 3 + 4
    waiting.remove(sequences[3])
    waiting.check_invariants()
    assert (len(waiting), waiting.queued_tokens) == (4, 7)


def test_a_preempted_sequence_is_before_all_that_came_later() -> None:
    waiting = WaitingQueue()
    first, second, third = (sequence(number) for number in range(3))
    for each in (first, second, third):
        waiting.add(each)
    waiting.remove(first)
    first.admit(0)
    first.planned(3, decodes=False)
    first.preempt()
    waiting.add(first)
    waiting.check_invariants()
    assert list(waiting) == [first, second, third]
    assert waiting.queued_tokens == 12


def test_what_is_admitted_lets_those_who_wait_grow_older() -> None:
    waiting = WaitingQueue()
    long = Sequence(request(0, 0, 30), array("I", [1] * 30), 0, 100, due=10)
    waiting.add(long)
    waiting.add(sequence(1, tokens=4))
    waiting.add(sequence(2, tokens=6))
    waiting.add(sequence(3, tokens=7))
    assert [s.order[1] for s in waiting] == [1, 2, 3, 0]
    for arrival in (1, 2):
        waiting.admit(waiting.first(1)[0])
        waiting.check_invariants()
        assert waiting.admitted_tokens == (4 if arrival == 1 else 10)
    assert [s.order[1] for s in waiting] == [0, 3]


def test_a_client_key_can_be_anything() -> None:
    waiting = WaitingQueue(client_of=lambda sequence: sequence.request.model)
    for number in range(4):
        waiting.add(sequence(number))
    assert len(waiting) == 4
    waiting.check_invariants()
