"""Who is let in, and when the others shall come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import admission
from coordinator.admission import (
    MAX_RETRY_AFTER_S,
    MIN_RETRY_AFTER_S,
    RETRY_AFTER_UNKNOWN_S,
    Admission,
    AdmissionLimits,
)
from coordinator.routing import EngineView, Refusal
from protocol.identifiers import ClientIndex, EngineIndex, RequestId
from protocol.messages import EngineCoreRequest, RejectReason
from protocol.sampling import SamplingParams

LIMITS = AdmissionLimits(max_requests=100, max_waiting_requests=4, max_queued_prefill_tokens=1000)


def owner(limits: AdmissionLimits = LIMITS) -> Admission:
    made = Admission(limits)
    made.served("m")
    return made


def engine(index: int = 0, waiting: int = 0, queued: int = 0, available: bool = True, model: str = "m") -> EngineView:
    return EngineView(EngineIndex(index), model, available, queued, waiting, waiting)


def request(tokens: int = 10, priority: int = 0, attempt: int = 0) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=1)
    return EngineCoreRequest(RequestId("r"), ClientIndex(0), attempt, "m", tokens, sampling, 0.0, priority)


def refusal(*engines: EngineView, tokens: int = 10, priority: int = 0, attempt: int = 0) -> Refusal | None:
    return owner().refusal(request(tokens, priority, attempt), engines, 100.0)


def test_requests_that_wait_are_limited_per_engine_core() -> None:
    assert refusal(engine(waiting=3)) is None
    refused = refusal(engine(waiting=4))
    assert refused is not None and refused.reason is RejectReason.OVERLOADED
    assert "4 requests" in refused.message
    assert refusal(engine(0, waiting=4), engine(1, waiting=3)) is None
    assert refusal(engine(0, waiting=4), engine(1, waiting=4)) is not None


def test_engine_cores_that_take_nothing_or_serve_another_model_give_no_room() -> None:
    assert refusal(engine(0, waiting=4), engine(1, available=False), engine(2, model="other")) is not None


def test_without_an_engine_core_it_is_not_a_matter_of_load() -> None:
    assert refusal(engine(waiting=99, available=False)) is None


def test_prompt_tokens_that_wait_are_limited_with_the_new_prompt() -> None:
    assert refusal(engine(queued=990)) is None
    assert refusal(engine(queued=991)) is not None
    assert refusal(engine(queued=100), tokens=901) is not None


def test_alone_a_prompt_of_any_length_may_come_in() -> None:
    assert refusal(engine(), tokens=5000) is None
    assert refusal(engine(queued=1), tokens=5000) is not None


def test_less_urgent_requests_meet_the_limits_earlier_and_more_urgent_ones_no_later() -> None:
    assert refusal(engine(waiting=2), priority=1) is None
    assert refusal(engine(waiting=3), priority=1) is not None
    assert refusal(engine(queued=740), priority=5) is None
    assert refusal(engine(queued=741), priority=5) is not None
    assert refusal(engine(waiting=4), priority=-100) is not None


def test_a_later_attempt_is_let_in_whatever_the_load() -> None:
    assert refusal(engine(waiting=50, queued=99_999), attempt=1) is None


def test_retry_after_follows_the_rate_at_which_requests_end() -> None:
    limits = AdmissionLimits(max_requests=1000, max_waiting_requests=100)
    made = owner(limits)
    for step in range(20):
        made.finished("m", 100.0 + step / 2)
    refused = made.refusal(request(), [engine(waiting=100)], 110.0)
    assert refused is not None and refused.retry_after_s == 5  # a tenth of 100 at 2 a second
    far_above = made.refusal(request(), [engine(waiting=130)], 110.0)
    assert far_above is not None and far_above.retry_after_s > refused.retry_after_s


def test_retry_after_follows_the_rate_at_which_prompts_are_computed() -> None:
    made = owner()
    for step in range(10):
        made.computed("m", 50, 100.0 + step)
    refused = made.refusal(request(150), [engine(queued=1000)], 110.0)
    assert refused is not None and refused.retry_after_s == 3  # 150 tokens at 50 a second


def test_the_time_to_come_back_has_limits() -> None:
    made = owner()
    unknown = made.refusal(request(), [engine(waiting=4)], 100.0)
    assert unknown is not None and unknown.retry_after_s == RETRY_AFTER_UNKNOWN_S
    made.computed("m", 1, 100.0)
    slow = made.refusal(request(), [engine(queued=1000)], 100.0)
    assert slow is not None and slow.retry_after_s == MAX_RETRY_AFTER_S
    for _ in range(1000):
        made.finished("m", 100.0)
    fast = made.refusal(request(), [engine(waiting=4)], 100.0)
    assert fast is not None and fast.retry_after_s == MIN_RETRY_AFTER_S


def test_only_served_models_are_known() -> None:
    made = Admission(LIMITS)
    made.finished("never", 1.0)
    assert not made.view("never", 0, 1.0).served
    made.served("m")
    assert made.view("m", 0, 1.0).served


def test_serving_again_keeps_the_rate() -> None:
    made = owner()
    for _ in range(5):
        made.finished("m", 100.0)
    made.served("m")
    assert made.view("m", 0, 101.0).retry_after_s == 2


def test_the_number_of_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_MODELS", 2)
    made = Admission(LIMITS)
    for model in ("a", "b", "a", "c"):
        made.served(model)
        made.check_invariants()
    assert [made.view(model, 0, 1.0).served for model in ("a", "b", "c")] == [True, False, True]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000), st.booleans()), max_size=5),
    st.integers(1, 3000),
    st.integers(-1, 1),
)
def test_what_is_let_in_never_breaks_a_limit(loads: list[tuple[int, int, bool]], tokens: int, priority: int) -> None:
    engines = [engine(index, waiting, queued, free) for index, (waiting, queued, free) in enumerate(loads)]
    takers = [each for each in engines if each.available]
    refused = refusal(*engines, tokens=tokens, priority=priority)
    if refused is not None:
        assert MIN_RETRY_AFTER_S <= refused.retry_after_s <= MAX_RETRY_AFTER_S
    elif takers:
        assert sum(each.waiting_requests for each in takers) < 4 * len(takers)
        queued = sum(each.queued_prefill_tokens for each in takers)
        assert queued == 0 or queued + tokens <= 1000 * len(takers)
