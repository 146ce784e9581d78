"""The routing policy."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from coordinator.routing import (
    KV_FULL_SHARE,
    REQUEST_WEIGHT_TOKENS,
    SESSION_WEIGHT_TOKENS,
    Candidate,
    Choice,
    EngineView,
    ModelView,
    Refusal,
    candidates,
    choose,
    cost,
)
from protocol.identifiers import ClientIndex, EngineIndex, RequestId
from protocol.messages import EngineCoreRequest, RejectReason, RouteReason
from protocol.sampling import SamplingParams

FREE = ModelView(served=True, in_flight=0, max_requests=10, retry_after_s=5.0)
FIRST = EngineIndex(-1)


def engine(
    index: int, queued: int = 0, requests: int = 0, available: bool = True, model: str = "m", kv_used: float = 0.0
) -> EngineView:
    return EngineView(EngineIndex(index), model, available, queued, requests, kv_used_share=kv_used)


def request(
    tokens: int = 10, model: str = "m", rank: int = -1, session: str = "", attempt: int = 0
) -> EngineCoreRequest:
    return EngineCoreRequest(
        RequestId("r"),
        ClientIndex(0),
        attempt,
        model,
        tokens,
        SamplingParams(max_tokens=1),
        arrival_time_s=0.0,
        session_key=session,
        engine_rank=rank,
    )


def able(
    request: EngineCoreRequest, engines: Sequence[EngineView], model: ModelView = FREE, known: Sequence[int] = ()
) -> list[int] | Refusal:
    found = candidates(request, engines, model, {*known, *(view.index for view in engines)})
    return found if isinstance(found, Refusal) else [view.index for view in found]


def pick(
    request: EngineCoreRequest, engines: Sequence[EngineView], cached: Sequence[int] = (), last: EngineIndex = FIRST
) -> Choice:
    cached = [*cached, *[0] * (len(engines) - len(cached))]
    return choose(request, [Candidate(*pair) for pair in zip(engines, cached, strict=True)], last)


def refused(outcome: object) -> RejectReason:
    assert isinstance(outcome, Refusal)
    return outcome.reason


# --- load ---


def test_the_shortest_queue_of_prefill_tokens_wins() -> None:
    choice = pick(request(), [engine(0, queued=900), engine(1, queued=100), engine(2, queued=500)])
    assert choice == Choice(EngineIndex(1), 0, RouteReason.LOAD)


def test_running_requests_count_as_tokens() -> None:
    assert pick(request(), [engine(0, requests=3), engine(1, queued=2 * REQUEST_WEIGHT_TOKENS)]).index == 1


def test_a_kv_cache_that_fills_up_counts_as_tokens() -> None:
    assert pick(request(), [engine(0, kv_used=0.9), engine(1, queued=1000)]).index == 1
    assert pick(request(), [engine(0, kv_used=0.4), engine(1, queued=1000)]).index == 0


def test_equal_engine_cores_take_turns() -> None:
    engines = [engine(0), engine(3), engine(7)]
    chosen = [FIRST]
    for _ in range(6):
        chosen.append(pick(request(), engines, last=chosen[-1]).index)
    assert chosen[1:] == [0, 3, 7, 0, 3, 7]


# --- affinity ---


def test_what_is_stored_is_worth_waiting_for_but_not_for_ever() -> None:
    for queued, chosen in ((2999, 0), (3001, 1)):
        choice = pick(request(1100), [engine(0, queued=queued), engine(1)], cached=[1000])
        assert choice.index == chosen
    assert choice == Choice(EngineIndex(1), 0, RouteReason.LOAD)


def test_affinity_is_the_reason_when_the_one_that_has_most_is_chosen() -> None:
    engines = [engine(0), engine(1), engine(2)]
    assert pick(request(1000), engines, cached=[0, 640, 64]) == Choice(EngineIndex(1), 640, RouteReason.AFFINITY)
    assert pick(request(1000), engines, cached=[640, 640, 640]) == Choice(EngineIndex(0), 640, RouteReason.LOAD)


def test_prompts_that_begin_alike_go_together_until_the_queue_is_dearer_than_the_beginning() -> None:
    """Each has 1000 tokens in common with the others, and 50 of its own."""
    queued, requests, cached = [0, 0], [0, 0], [0, 0]
    chosen = []
    for _ in range(40):
        views = [engine(index, queued[index], requests[index]) for index in (0, 1)]
        choice = pick(request(1050), views, cached)
        queued[choice.index] += 1050 - choice.cached_tokens
        requests[choice.index] += 1
        cached[choice.index] = 1000
        chosen.append(int(choice.index))
    first_elsewhere = chosen.index(1)
    assert 12 <= first_elsewhere <= 20
    assert chosen[:first_elsewhere] == [0] * first_elsewhere
    assert abs(chosen.count(0) - chosen.count(1)) <= first_elsewhere


def test_a_beginning_that_many_share_counts_less_with_each() -> None:
    def first_place(sharers: int) -> int:
        among = [Candidate(engine(0, queued=500), 1000, sharers), Candidate(engine(1), 0)]
        return choose(request(1100), among, FIRST).index

    places = [first_place(sharers) for sharers in range(30)]
    assert places[0] == 0
    assert places == sorted(places) and places[-1] == 1


# --- hints ---


def test_the_wanted_engine_core_gets_it_whatever_it_has_to_do() -> None:
    engines = [engine(0), engine(4, queued=100_000, kv_used=1.0)]
    assert able(request(rank=4), engines) == [4]
    assert pick(request(rank=4), engines[1:]) == Choice(EngineIndex(4), 0, RouteReason.HINT)


def test_an_engine_core_that_does_not_exist_or_has_another_model_cannot_be_wanted() -> None:
    engines = [engine(0), engine(1, model="other"), engine(2, available=False)]
    assert refused(able(request(rank=1), engines)) is RejectReason.NO_SUCH_ENGINE
    assert refused(able(request(rank=5), engines)) is RejectReason.NO_SUCH_ENGINE
    assert refused(able(request(rank=2), engines)) is RejectReason.NO_ENGINE, "it drains"
    assert refused(able(request(rank=5), engines, known=[5])) is RejectReason.NO_ENGINE, "it is being restarted"


def test_a_resumed_request_goes_where_there_is_place() -> None:
    engines = [engine(0), engine(1, queued=10)]
    assert able(request(rank=5, attempt=1), engines) == [0, 1]
    assert pick(request(rank=5, attempt=1), engines) == Choice(EngineIndex(0), 0, RouteReason.RESUME)


def test_a_session_has_a_favourite_that_stays_when_others_come_and_go() -> None:
    sessions = [f"session-{number}" for number in range(300)]
    four, three = [[engine(index) for index in indexes] for indexes in ((0, 1, 2, 3), (0, 1, 3))]
    favourites = {session: pick(request(session=session), four).index for session in sessions}
    counts = [list(favourites.values()).count(EngineIndex(index)) for index in range(4)]
    assert min(counts) > 50, counts
    for session in sessions:
        without = pick(request(session=session), three).index
        assert without == favourites[session] or favourites[session] == 2


def test_a_sessions_favourite_is_a_weight() -> None:
    favourite = pick(request(session="s"), [engine(0), engine(1)])
    assert favourite.reason is RouteReason.HINT
    for queued, reason in (
        (SESSION_WEIGHT_TOKENS - 1, RouteReason.HINT),
        (SESSION_WEIGHT_TOKENS + 1, RouteReason.LOAD),
    ):
        views = [engine(index, queued=queued if index == favourite.index else 0) for index in (0, 1)]
        assert pick(request(session="s"), views).reason is reason


def test_what_is_stored_elsewhere_counts_more_than_a_favourite() -> None:
    other = 1 - pick(request(session="s"), [engine(0), engine(1)]).index
    cached = [640 if index == other else 0 for index in (0, 1)]
    choice = pick(request(1000, session="s"), [engine(0), engine(1)], cached)
    assert choice == Choice(EngineIndex(other), 640, RouteReason.AFFINITY)


# --- who can get it at all ---


def test_engine_cores_that_are_not_available_or_have_another_model_are_left_out() -> None:
    assert able(request(), [engine(0, available=False), engine(1, model="other"), engine(2, queued=10_000)]) == [2]


def test_a_full_kv_cache_is_left_out_while_there_is_another() -> None:
    assert able(request(), [engine(0, kv_used=KV_FULL_SHARE), engine(1)]) == [1]
    assert able(request(), [engine(0, kv_used=1.0), engine(1, kv_used=1.0)]) == [0, 1]


def test_a_model_nobody_has_served_is_unknown() -> None:
    unknown = ModelView(served=False, in_flight=0, max_requests=10, retry_after_s=5.0)
    assert refused(able(request(model="x"), [engine(0)], unknown)) is RejectReason.UNKNOWN_MODEL


def test_a_model_without_an_available_engine_core_is_refused_with_a_time_to_come_back() -> None:
    refusal = able(request(), [engine(0, available=False)])
    assert refused(refusal) is RejectReason.NO_ENGINE
    assert isinstance(refusal, Refusal) and refusal.retry_after_s > 0


def test_a_full_model_is_refused_with_a_time_to_come_back() -> None:
    full = ModelView(served=True, in_flight=10, max_requests=10, retry_after_s=5.0)
    refusal = able(request(), [engine(0)], full)
    assert refused(refusal) is RejectReason.OVERLOADED
    assert isinstance(refusal, Refusal) and refusal.retry_after_s == 5.0


views = st.builds(
    EngineView,
    st.integers(0, 50).map(EngineIndex),
    st.sampled_from(["m", "other"]),
    st.booleans(),
    st.integers(0, 5000),
    st.integers(0, 20),
    kv_used_share=st.sampled_from([0.0, 0.3, 0.7, 0.94, 0.95, 1.0]),
)


@given(
    st.lists(st.tuples(views, st.integers(0, 30)), max_size=8, unique_by=lambda pair: pair[0].index),
    st.integers(-1, 50),
    st.sampled_from(["", "a", "b"]),
)
def test_the_choice_is_the_cheapest_and_never_full_or_draining_while_another_is_not(
    engines: list[tuple[EngineView, int]], last: int, session: str
) -> None:
    wanted = request(2000, session=session)
    found = candidates(wanted, [view for view, _ in engines], FREE, ())
    able = [view for view, _ in engines if view.model == "m" and view.available]
    if not able:
        assert isinstance(found, Refusal)
        return
    assert not isinstance(found, Refusal)
    assert found and all(view in able for view in found)
    roomy = [view for view in able if view.kv_used_share < KV_FULL_SHARE]
    assert found == (roomy or able)
    among = [Candidate(view, 64 * blocks) for view, blocks in engines if view in found]
    choice = choose(wanted, among, EngineIndex(last))
    costs = {candidate.engine.index: cost(candidate, 2000) for candidate in among}
    assert costs[choice.index] <= min(costs.values()) + (SESSION_WEIGHT_TOKENS if session else 0)
    assert choice.cached_tokens == next(c.cached_tokens for c in among if c.engine.index == choice.index)
