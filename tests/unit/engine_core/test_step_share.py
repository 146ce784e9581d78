"""How a step's tokens are shared."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine_core.sequence import Sequence
from engine_core.step_share import share_step
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams


def running(prefill_left: int, row: int) -> Sequence:
    """A running sequence with so many tokens to prefill."""
    tokens = prefill_left + 1
    sampling = SamplingParams(max_tokens=5)
    request = EngineCoreRequest(RequestId(f"r{row}"), ClientIndex(0), 0, "m", tokens, sampling, arrival_time_s=0.0)
    sequence = Sequence(request, array("I", [1] * tokens), row, 10_000)
    sequence.admit(row)
    return sequence


def shared(lefts: list[int], budget_tokens: int) -> list[tuple[int, int, bool]]:
    shares = share_step([running(left, row) for row, left in enumerate(lefts)], budget_tokens)
    return [(share.sequence.row, share.prefill_tokens, share.decodes) for share in shares]


def test_decodes_come_first_and_the_rest_goes_to_the_oldest_prefill() -> None:
    assert shared([100, 0, 50, 0], 20) == [(1, 0, True), (3, 0, True), (0, 18, False)]


def test_what_one_prefill_leaves_the_next_one_gets() -> None:
    assert shared([4, 100, 100], 16) == [(0, 4, True), (1, 11, False)]


def test_the_last_chunk_decodes_in_the_same_step_only_within_the_budget() -> None:
    assert shared([15], 16) == [(0, 15, True)]
    assert shared([16], 16) == [(0, 16, False)]
    assert shared([3, 4], 4) == [(0, 3, True)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(8, 60))
def test_the_budget_is_kept_used_and_never_wasted_on_waiting(lefts: list[int], budget_tokens: int) -> None:
    shares = shared(lefts, budget_tokens)
    spent = sum(tokens + decodes for _, tokens, decodes in shares)
    assert spent == min(budget_tokens, sum(left + 1 for left in lefts))
    assert all(tokens or decodes for _, tokens, decodes in shares)
    assert {row for row, left in enumerate(lefts) if left == 0} <= {row for row, _, _ in shares}
