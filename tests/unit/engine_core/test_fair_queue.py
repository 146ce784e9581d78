"""Fairness between clients, and the order within one."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine_core.fair_queue import MAX_DEBTORS, FairQueue
from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

LATER = 1_000_000


def waiting(arrival: int, client: int = 0, tokens: int = 10, due: int = LATER) -> Sequence:
    request = EngineCoreRequest(
        RequestId(f"r{arrival}"), ClientIndex(client), 0, "m", tokens, SamplingParams(max_tokens=5), arrival_time_s=0.0
    )
    return Sequence(request, array("I", [1] * tokens), arrival, 100_000, due)


def queue_of(*sequences: Sequence) -> FairQueue:
    queue = FairQueue()
    for sequence in sequences:
        queue.add(sequence)
        queue.check_invariants()
    return queue


def admit_next(queue: FairQueue, admitted_tokens: int = 0) -> Sequence:
    sequence = next(queue.in_order(admitted_tokens))
    queue.admit(sequence)
    queue.check_invariants()
    return sequence


def clients_of(sequences: list[Sequence]) -> list[int]:
    return [sequence.request.client_index for sequence in sequences]


def test_the_shortest_prompt_of_a_client_goes_first_and_equal_ones_by_arrival() -> None:
    long, short, same = waiting(0, tokens=50), waiting(1, tokens=5), waiting(2, tokens=50)
    assert list(queue_of(same, long, short).in_order(0)) == [short, long, same]


def test_an_overdue_one_goes_before_shorter_ones_and_the_oldest_of_them_first() -> None:
    long, longer, short = waiting(0, tokens=50, due=200), waiting(1, tokens=60, due=150), waiting(2, tokens=5, due=900)
    queue = queue_of(long, longer, short)
    assert list(queue.in_order(149)) == [short, long, longer]
    assert list(queue.in_order(150)) == [longer, short, long]
    assert list(queue.in_order(200)) == [long, longer, short]
    queue.remove(longer)
    queue.check_invariants()
    assert list(queue.in_order(200)) == [long, short]


def test_many_requests_of_one_client_do_not_push_back_those_of_another() -> None:
    queue = queue_of(*(waiting(number) for number in range(100)), waiting(100, client=1), waiting(101, client=1))
    assert clients_of([admit_next(queue) for _ in range(6)]) == [0, 1, 0, 1, 0, 0]


def test_clients_share_tokens_not_requests() -> None:
    queue = queue_of(
        *(waiting(number, tokens=40) for number in range(10)),
        *(waiting(100 + number, client=1, tokens=10) for number in range(40)),
    )
    admitted = [admit_next(queue) for _ in range(25)]
    assert Counter(clients_of(admitted)) == {0: 5, 1: 20}


def test_a_client_that_was_idle_gets_no_credit_for_the_past() -> None:
    queue = queue_of(*(waiting(number) for number in range(100)))
    for _ in range(50):
        admit_next(queue)
    for number in range(20):
        queue.add(waiting(200 + number, client=1))
    assert Counter(clients_of([admit_next(queue) for _ in range(20)])) == {0: 10, 1: 10}


def test_a_debt_is_not_lost_by_a_short_absence_and_forgotten_when_the_others_have_caught_up() -> None:
    queue = queue_of(*(waiting(number) for number in range(10)), waiting(50, client=1, tokens=25))
    assert clients_of([admit_next(queue), admit_next(queue)]) == [0, 1]
    queue.add(waiting(60, client=1))
    assert clients_of([admit_next(queue) for _ in range(3)]) == [0, 0, 1]
    for _ in range(6):
        admit_next(queue)
    queue.add(waiting(70, client=1))
    assert clients_of([admit_next(queue), admit_next(queue)]) == [1, 0]


def test_the_order_told_is_the_order_in_which_they_are_admitted() -> None:
    sequences = [waiting(number, client=number * 7 % 3, tokens=number * 5 % 17 + 1) for number in range(30)]
    queue = queue_of(*sequences)
    told = list(queue.in_order(0))
    assert [admit_next(queue) for _ in range(30)] == told
    assert sorted(told, key=lambda s: s.order) == sequences
    assert len(queue) == 0


def test_a_preempted_sequence_goes_first_and_pays_once() -> None:
    preempted, other = waiting(5, client=0, tokens=100), waiting(1, client=1)
    queue = queue_of(preempted, other)
    queue.admit(preempted)
    preempted.admit(0)
    preempted.preempt()
    queue.add(preempted)
    queue.add(waiting(6, client=0))
    queue.check_invariants()
    assert admit_next(queue) is preempted
    assert clients_of([admit_next(queue), admit_next(queue)]) == [1, 0]
    queue.add(preempted)
    queue.remove(preempted)
    assert len(queue) == 0


def test_what_is_remembered_of_clients_is_bounded() -> None:
    queue = FairQueue()
    stays = waiting(0, client=0, tokens=3)
    queue.add(stays)
    for client in range(1, 3 * MAX_DEBTORS):
        sequence = waiting(client, client=client, tokens=2)
        queue.add(sequence)
        queue.admit(sequence)
    queue.check_invariants()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=20, max_size=120),
    st.integers(0, 40),
)
def test_clients_that_always_have_requests_stay_within_one_longest_request_of_each(
    requests: list[tuple[int, int]], later: int
) -> None:
    """The bound of Goyal et al. 1996, theorem 1."""
    sequences = [waiting(number, client, tokens) for number, (client, tokens) in enumerate(requests)]
    longest = Counter[int]()
    for client, tokens in requests:
        longest[client] = max(longest[client], tokens)
    queue = queue_of(*sequences[: len(sequences) - later])
    arriving = sequences[len(sequences) - later :]
    left = Counter(clients_of(list(queue.in_order(0))))
    served: Counter[int] = Counter()
    both = {client for client in left if left[client]}
    while both:
        sequence = admit_next(queue)
        client = sequence.request.client_index
        served[client] += sequence.num_tokens
        left[client] -= 1
        if arriving:
            new = arriving.pop()
            queue.add(new)
            left[new.request.client_index] += 1
        both = {client for client in both if left[client]}  # those with requests all along
        for one in both:
            for other in both:
                assert abs(served[one] - served[other]) <= longest[one] + longest[other]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 400)), min_size=1, max_size=60), st.integers(0, 500))
def test_no_younger_one_of_its_client_goes_before_an_overdue_one(
    requests: list[tuple[int, int]], admitted_tokens: int
) -> None:
    sequences = [waiting(number, 0, tokens, due) for number, (tokens, due) in enumerate(requests)]
    queue = queue_of(*sequences)
    order = list(queue.in_order(admitted_tokens))
    queue.check_invariants()
    for place, sequence in enumerate(order):
        if sequence.due <= admitted_tokens:
            assert all(before.order < sequence.order for before in order[:place])
