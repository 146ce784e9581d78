import mlx.core as mx
import pytest

from engine_core.device import DecodeRow
from engine_core.model_runner import PlanError
from engine_core.token_feedback import TokenFeedback


def rows(*fed: tuple[int, int | None]) -> list[DecodeRow]:
    return [DecodeRow(row, 0, token_id, 0) for row, token_id in fed]


def test_each_row_gets_what_it_sampled_or_what_is_known() -> None:
    feedback = TokenFeedback()
    assert feedback.fed(rows((4, 9), (2, 8))).tolist() == [9, 8]
    feedback.sampled(rows((4, 9), (2, 8), (7, 1)), mx.array([40, 20, 70], mx.uint32))
    assert feedback.fed(rows((7, None), (4, None))).tolist() == [70, 40]
    mixed = feedback.fed(rows((2, None), (3, 5), (4, None)))
    assert mixed.tolist() == [20, 5, 40] and mixed.dtype == mx.uint32
    assert feedback.fed(rows((2, None), (3, 5), (4, None))).tolist() == [20, 5, 40]


def test_only_the_step_before_counts() -> None:
    feedback = TokenFeedback()
    with pytest.raises(PlanError):
        feedback.fed(rows((0, None)))
    feedback.sampled(rows((0, 1)), mx.array([3], mx.uint32))
    feedback.sampled([], None)
    with pytest.raises(PlanError, match="the step before"):
        feedback.fed(rows((0, None)))
