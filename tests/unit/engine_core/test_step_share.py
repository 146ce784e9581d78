"""How a step's tokens are shared."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine_core.chunk_budget import SMALLEST_CHUNK
from engine_core.sequence import Sequence
from engine_core.step_share import StepTokens, prefill_order, share_step
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams


def running(prefill_left: int, row: int, priority: int = 0, due: int = 0) -> Sequence:
    """A running sequence with so many tokens to prefill."""
    tokens = prefill_left + 1
    sampling = SamplingParams(max_tokens=5)
    request = EngineCoreRequest(
        RequestId(f"r{row}"), ClientIndex(0), 0, "m", tokens, sampling, arrival_time_s=0.0, priority=priority
    )
    sequence = Sequence(request, array("I", [1] * tokens), row, 10_000, due)
    sequence.admit(row, due)
    return sequence


def no_border(_sequence: Sequence) -> int:
    return 1_000_000


def shared(lefts: list[int], budget_tokens: int, prefill_tokens: int = 1_000) -> list[tuple[int, int, bool]]:
    tokens = StepTokens(budget_tokens, prefill_tokens)
    shares = share_step([running(left, row) for row, left in enumerate(lefts)], tokens, 0, no_border)
    return [(share.sequence.row, share.prefill_tokens, share.decodes) for share in shares]


def test_decodes_come_first_and_the_rest_goes_to_the_oldest_prefill() -> None:
    assert shared([100, 0, 50, 0], 20) == [(1, 0, True), (3, 0, True), (0, 18, False)]


def test_what_one_prefill_leaves_the_next_one_gets() -> None:
    assert shared([4, 100, 100], 26) == [(0, 4, True), (1, 21, False)]


def test_a_second_chunk_is_not_cut_so_small_that_its_forward_is_wasted() -> None:
    assert shared([4, 100], 4 + 1 + SMALLEST_CHUNK) == [(0, 4, True), (1, SMALLEST_CHUNK, False)]
    assert shared([4, 100], 4 + 1 + SMALLEST_CHUNK - 1) == [(0, 4, True)]
    assert shared([4, 8], 64) == [(0, 4, True), (1, 8, True)]
    assert shared([100], 5) == [(0, 5, False)]


def test_prefill_is_bounded_beside_decodes_and_without() -> None:
    assert shared([0, 100], 50, 16) == [(0, 0, True), (1, 16, False)]
    assert shared([0, 100], 50, 0) == [(0, 0, True)]
    assert shared([100], 50, 32) == [(0, 32, False)]


def test_the_last_chunk_decodes_in_the_same_step_only_within_the_budget() -> None:
    assert shared([15], 16) == [(0, 15, True)]
    assert shared([16], 16) == [(0, 16, False)]
    assert shared([3, 4], 4) == [(0, 3, True)]


def test_the_shortest_rest_is_prefilled_first_until_a_longer_one_is_overdue() -> None:
    long, short, urgent = running(100, 0, due=400), running(30, 1, due=500), running(200, 2, priority=-1, due=900)
    sequences = [long, short, urgent]

    def order(admitted_tokens: int) -> list[Sequence]:
        return sorted(sequences, key=lambda sequence: prefill_order(sequence, admitted_tokens))

    assert order(399) == [urgent, short, long]
    assert order(400) == [urgent, long, short]
    assert order(500) == [urgent, long, short]
    equal = running(30, 3, due=450)
    assert sorted([short, equal], key=lambda s: prefill_order(s, 0)) == [equal, short]
    tokens = StepTokens(1_000, 64)
    assert [s.sequence for s in share_step([long, short], tokens, 0, no_border)] == [short, long]
    assert [s.sequence for s in share_step([long, short], tokens, 400, no_border)] == [long]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(8, 90), st.integers(0, 90))
def test_the_budgets_are_kept_and_used(lefts: list[int], budget_tokens: int, prefill_tokens: int) -> None:
    shares = shared(lefts, budget_tokens, prefill_tokens)
    prefill = sum(tokens for _, tokens, _ in shares)
    spent = prefill + sum(decodes for _, _, decodes in shares)
    assert spent <= budget_tokens
    assert prefill <= prefill_tokens
    assert all(tokens or decodes for _, tokens, decodes in shares)
    assert {row for row, left in enumerate(lefts) if left == 0} <= {row for row, _, _ in shares}
    room = min(budget_tokens - lefts.count(0), prefill_tokens)
    assert prefill + SMALLEST_CHUNK + len(shares) > min(room, sum(lefts)), "more than a small chunk is left unused"
