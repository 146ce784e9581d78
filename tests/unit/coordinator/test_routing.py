"""The routing policy."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.routing import REQUEST_WEIGHT_TOKENS, EngineView, ModelView, Refusal, choose, cost
from protocol.identifiers import ClientIndex, EngineIndex, RequestId
from protocol.messages import EngineCoreRequest, RejectReason
from protocol.sampling import SamplingParams

FREE = ModelView(served=True, in_flight=0, max_requests=10, retry_after_s=5.0)
FIRST = EngineIndex(-1)


def engine(index: int, queued: int = 0, requests: int = 0, available: bool = True, model: str = "m") -> EngineView:
    return EngineView(EngineIndex(index), model, available, queued, requests)


def request(tokens: int = 10, model: str = "m") -> EngineCoreRequest:
    return EngineCoreRequest(
        RequestId("r"), ClientIndex(0), 0, model, tokens, SamplingParams(max_tokens=1), arrival_time_s=0.0
    )


def reason(choice: EngineIndex | Refusal) -> RejectReason:
    assert isinstance(choice, Refusal)
    return choice.reason


def test_the_shortest_queue_of_prefill_tokens_wins() -> None:
    assert choose(request(), [engine(0, queued=900), engine(1, queued=100), engine(2, queued=500)], FREE, FIRST) == 1


def test_running_requests_count_as_tokens() -> None:
    assert choose(request(), [engine(0, requests=3), engine(1, queued=2 * REQUEST_WEIGHT_TOKENS)], FREE, FIRST) == 1


def test_equal_engine_cores_take_turns() -> None:
    engines = [engine(0), engine(3), engine(7)]
    chosen = [FIRST]
    for _ in range(6):
        choice = choose(request(), engines, FREE, chosen[-1])
        assert not isinstance(choice, Refusal)
        chosen.append(choice)
    assert chosen[1:] == [0, 3, 7, 0, 3, 7]


def test_engine_cores_that_are_not_available_or_have_another_model_are_left_out() -> None:
    engines = [engine(0, available=False), engine(1, model="other"), engine(2, queued=10_000)]
    assert choose(request(), engines, FREE, FIRST) == 2


def test_a_model_nobody_has_served_is_unknown() -> None:
    unknown = ModelView(served=False, in_flight=0, max_requests=10, retry_after_s=5.0)
    assert reason(choose(request(model="x"), [engine(0)], unknown, FIRST)) is RejectReason.UNKNOWN_MODEL


def test_a_model_without_an_available_engine_core_is_refused_with_a_time_to_come_back() -> None:
    refusal = choose(request(), [engine(0, available=False)], FREE, FIRST)
    assert reason(refusal) is RejectReason.NO_ENGINE
    assert isinstance(refusal, Refusal) and refusal.retry_after_s > 0


def test_a_full_model_is_refused_with_a_time_to_come_back() -> None:
    full = ModelView(served=True, in_flight=10, max_requests=10, retry_after_s=5.0)
    refusal = choose(request(), [engine(0)], full, FIRST)
    assert reason(refusal) is RejectReason.OVERLOADED
    assert isinstance(refusal, Refusal) and refusal.retry_after_s == 5.0


views = st.builds(
    EngineView,
    st.integers(0, 50).map(EngineIndex),
    st.sampled_from(["m", "other"]),
    st.booleans(),
    st.integers(0, 5000),
    st.integers(0, 20),
)


@given(st.lists(views, max_size=8, unique_by=lambda view: view.index), st.integers(-1, 50))
def test_the_choice_is_always_one_of_the_cheapest_that_may_have_it(engines: list[EngineView], last: int) -> None:
    choice = choose(request(), engines, FREE, EngineIndex(last))
    candidates = {view.index: cost(view, request()) for view in engines if view.model == "m" and view.available}
    if not candidates:
        assert isinstance(choice, Refusal)
    else:
        assert not isinstance(choice, Refusal)
        assert candidates[choice] == min(candidates.values())
