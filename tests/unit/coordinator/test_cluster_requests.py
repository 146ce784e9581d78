"""What becomes of requests: accepted, refused, repeated, superseded, aborted, finished."""

import pytest
from core_fixture import Core, FakeClient, FakeEngine, key

from coordinator.admission import AdmissionLimits
from coordinator.cut_offs import CUT_OFF_S
from coordinator.events import Forward, Link, Send, Subscribed
from protocol.codec import encode, pack_token_ids
from protocol.identifiers import ClientIndex
from protocol.messages import (
    Abort,
    Accepted,
    ClusterSnapshot,
    EngineCoreRequest,
    Load,
    LoadReport,
    Rejected,
    RejectReason,
    RequestsLost,
)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engine(core: Core) -> FakeEngine:
    engine = FakeEngine(core)
    engine.hello()
    return engine


@pytest.fixture
def client(core: Core) -> FakeClient:
    client = FakeClient(core)
    client.hello()
    return client


def counts(core: Core) -> list[int]:
    core.handle(Subscribed())
    (snapshot,) = core.published(core.end_turn())
    assert isinstance(snapshot, ClusterSnapshot)
    return [engine.requests for engine in snapshot.engines]


def rejection(answer: Accepted | Rejected | None) -> RejectReason:
    assert isinstance(answer, Rejected)
    assert answer.message
    return answer.reason


def test_the_engine_core_gets_the_same_frames(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    frames = encode(client.request("r1", 3), pack_token_ids([1, 2, 3]))
    client.say(client.request("r1", 3), pack_token_ids([1, 2, 3]))
    (forward,) = [command for command in core.commands if isinstance(command, Forward)]
    assert list(forward.frames) == frames
    assert forward.identity == engine.identity


def test_the_answer_names_the_run_of_the_engine_core(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    answer = client.submit("r1")
    assert isinstance(answer, Accepted)
    assert (answer.key, answer.engine_incarnation) == (key("r1"), engine.incarnation)


def test_a_model_never_served_is_unknown(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    assert rejection(client.submit("r1", model="other")) is RejectReason.UNKNOWN_MODEL


def test_a_draining_engine_core_gets_nothing(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    engine.report(Load(draining=True))
    assert rejection(client.submit("r1")) is RejectReason.NO_ENGINE


def test_beyond_the_limit_requests_are_refused_until_one_has_finished(client_limit: int = 3) -> None:
    core = Core(max_requests=client_limit)
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    for number in range(client_limit):
        assert isinstance(client.submit(f"r{number}"), Accepted)
    assert rejection(client.submit("more")) is RejectReason.OVERLOADED
    engine.report(finished=[key("r0")])
    assert isinstance(client.submit("more"), Accepted)


def test_a_refused_request_is_told_to_wait_longer_when_requests_finish_slowly() -> None:
    waits = []
    for finished in (10, 1000):
        core = Core(max_requests=500)
        engine, client = FakeEngine(core), FakeClient(core)
        engine.hello()
        client.hello()
        for number in range(finished):
            client.submit(f"r{number}")
            engine.report(finished=[key(f"r{number}")])
        for number in range(500):
            client.submit(f"s{number}")
        answer = client.submit("more")
        assert isinstance(answer, Rejected)
        waits.append(answer.retry_after_s)
    assert waits == [5, 1]  # a tenth of 500 at 10 a second; at 1000 a second less than a second, raised


def test_a_request_sent_again_is_accepted_again_and_runs_once(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    first, second = client.submit("r1"), client.submit("r1")
    assert first == second
    assert not core.sent_to(engine.identity)
    assert counts(core) == [1]


def test_an_older_attempt_is_a_duplicate(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    client.submit("r1", attempt=2)
    assert rejection(client.submit("r1", attempt=1)) is RejectReason.DUPLICATE


def test_another_api_server_cannot_take_a_request_id(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    other = FakeClient(core, "api-1")
    other.hello()
    client.submit("r1")
    assert rejection(other.submit("r1", attempt=1)) is RejectReason.DUPLICATE
    other.abort(key("r1"))
    assert counts(core) == [1]


def test_a_newer_attempt_supersedes_on_the_same_engine_core(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    client.submit("r1")
    assert isinstance(client.submit("r1", attempt=1), Accepted)
    assert [type(message) for message in core.sent_to(engine.identity)] == [EngineCoreRequest]
    engine.report(finished=[key("r1", 0)])
    assert counts(core) == [1], "the end of the older attempt is not the end of the newer"
    engine.report(finished=[key("r1", 1)])
    assert counts(core) == [0]


def test_a_newer_attempt_elsewhere_aborts_the_older(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    client.submit("r1")
    engine.report(Load(draining=True))
    other = FakeEngine(core, "engine-1")
    other.hello()
    client.submit("r1", attempt=1)
    assert core.sent_to(engine.identity) == [Abort([key("r1", 0)])]
    assert counts(core) == [0, 1]


def test_a_newer_attempt_without_a_place_waits_for_one_and_ends_the_older(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    client.submit("r1")
    engine.report(Load(draining=True))
    assert client.submit("r1", attempt=1) is None
    assert core.sent_to(engine.identity) == [Abort([key("r1", 0)])]
    FakeEngine(core, "engine-1").hello()
    assert [type(m) for m in core.sent_to(client.identity)] == [Accepted]


def test_what_has_lost_its_engine_core_waits_for_the_restart(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    client.submit("r1")
    client.exited(engine.name, engine.pid)
    assert client.submit("r1", attempt=1) is None
    assert rejection(client.submit("r2")) is RejectReason.NO_ENGINE, "a new one is refused at once"
    restarted = FakeEngine(core, incarnation="e2")
    restarted.hello()
    (accepted,) = core.sent_to(client.identity)
    assert isinstance(accepted, Accepted)
    assert (accepted.key, accepted.engine_incarnation) == (key("r1", 1), "e2")


def test_what_waits_for_the_restart_can_be_aborted(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    client.submit("r1")
    client.exited(engine.name, engine.pid)
    client.submit("r1", attempt=1)
    client.abort(key("r1", 1))
    FakeEngine(core, incarnation="e2").hello()
    assert core.sent_to(client.identity) == []


def test_what_was_let_in_before_is_not_refused_as_overload() -> None:
    core = Core(max_requests=1)
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.submit("r1")
    assert rejection(client.submit("r2")) is RejectReason.OVERLOADED
    assert isinstance(client.submit("r3", attempt=1), Accepted)


def test_aborts_reach_the_engine_cores_that_have_the_requests(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    other = FakeEngine(core, "engine-1")
    other.hello()
    for number in range(4):
        client.submit(f"r{number}")
    client.abort(*(key(f"r{number}") for number in range(4)), key("unknown"), key("r0", attempt=9))
    sent = {c.identity: c.message for c in core.commands if isinstance(c, Send) and c.link is Link.ENGINES}
    assert sent == {
        engine.identity: Abort([key("r0"), key("r2")]),
        other.identity: Abort([key("r1"), key("r3")]),
    }
    assert counts(core) == [0, 0]


def test_an_abort_of_what_died_with_its_engine_core_is_skipped(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    client.submit("r1")
    engine.unreachable()
    client.abort(key("r1"))
    assert core.commands == []


def test_a_request_under_another_client_index_is_dropped(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    client.index = ClientIndex(client.index + 1)
    assert client.submit("r1") is None
    assert core.drops()


@pytest.mark.parametrize("buffers", [[], [b"\0" * 8], [b"\0" * 12, b"\0" * 12]])
def test_a_request_whose_prompt_is_not_as_long_as_it_says_is_dropped(
    core: Core, engine: FakeEngine, client: FakeClient, buffers: list[bytes]
) -> None:
    client.say(client.request("r1", tokens=3), *buffers)
    assert core.drops() and not core.sent_to(engine.identity)


def test_a_burst_between_two_reports_is_spread(core: Core, client: FakeClient) -> None:
    engines = [FakeEngine(core, f"engine-{number}") for number in range(4)]
    for engine in engines:
        engine.hello()
    for number in range(64):
        client.submit(f"r{number}", tokens=200)
    assert counts(core) == [16] * 4


def test_a_report_does_not_hide_what_was_sent_after_it(core: Core, client: FakeClient) -> None:
    first, second = FakeEngine(core, "engine-0"), FakeEngine(core, "engine-1")
    first.hello()
    second.hello()
    client.submit("long", tokens=1900)  # to the first
    first.report(Load(), adds_received=0)  # made before the long prompt came
    for number in range(4):
        client.submit(f"r{number}", tokens=100)
    assert counts(core) == [1, 4]
    first.report(Load(running=1), adds_received=1)  # has seen it and computed it
    client.submit("next", tokens=100)
    assert counts(core) == [2, 4]


def test_a_report_from_before_the_welcome_confirms_nothing(core: Core, client: FakeClient) -> None:
    first, second = FakeEngine(core, "engine-0"), FakeEngine(core, "engine-1")
    first.hello()
    second.hello()
    client.submit("long", tokens=1900)
    first.report(Load(), adds_received=57)
    client.submit("next", tokens=100)
    assert counts(core) == [1, 1]


def test_counts_are_zero_when_idle_and_the_next_requests_are_spread(core: Core, client: FakeClient) -> None:
    """After many requests, a third of them aborted and some of those reported as finished too (BR-i12)."""
    engines = {e.identity: e for e in (FakeEngine(core, f"engine-{number}") for number in range(3))}
    other = FakeClient(core, "api-1")
    other.hello()
    for engine in engines.values():
        engine.hello()
    for number in range(1500):
        sender = (client, other)[number % 2]
        sender.submit(f"r{number}", tokens=1 + number % 700)
        engine = next(engines[c.identity] for c in core.commands if isinstance(c, Forward))
        engine.adds_received += 1
        if number % 3 == 0:
            sender.abort(key(f"r{number}"))
        if number % 3 or number % 2:
            engine.report(Load(), engine.adds_received, [key(f"r{number}")])
    for engine in engines.values():
        engine.report(Load(), engine.adds_received)  # once a second, also when idle
    assert counts(core) == [0, 0, 0]
    for number in range(39):
        client.submit(f"s{number}")
    assert counts(core) == [13, 13, 13]


def test_what_waits_is_limited_until_reports_say_that_it_waits_no_longer() -> None:
    limits = AdmissionLimits(max_requests=100, max_waiting_requests=2, max_queued_prefill_tokens=100)
    core = Core(limits=limits)
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    assert isinstance(client.submit("r0", tokens=50), Accepted)
    assert isinstance(client.submit("r1", tokens=50), Accepted)
    refused = client.submit("r2")
    assert isinstance(refused, Rejected) and refused.reason is RejectReason.OVERLOADED
    engine.report(Load(running=2, queued_prefill_tokens=95, prompt_tokens_total=5), adds_received=2)
    refused = client.submit("r2")  # two have left the queue, but their prompts are not computed
    assert isinstance(refused, Rejected) and "prompt tokens" in refused.message
    assert refused.retry_after_s == 2  # a tenth of 100 at 5 a second
    engine.report(Load(running=2, queued_prefill_tokens=90, prompt_tokens_total=10), adds_received=2)
    assert isinstance(client.submit("r2"), Accepted)
    engine.report(Load(running=2, waiting=2), adds_received=3)
    assert isinstance(client.submit("r3"), Rejected)
    assert isinstance(client.submit("r1", attempt=1), Accepted)  # its caller was told yes


# --- an engine core that cannot reach an API server ---


def test_requests_of_an_api_server_that_cannot_be_reached_go_elsewhere_for_a_while(core: Core) -> None:
    engines = [FakeEngine(core, f"engine-{number}", f"e{number}") for number in range(2)]
    clients = [FakeClient(core, f"api-{number}", f"a{number}") for number in range(2)]
    for each in (*engines, *clients):
        each.hello()
    blind, cut_off = engines[0], clients[0]
    cut_off.submit("r1")
    cut_off.submit("r2")
    core.commands.clear()
    blind.say(LoadReport(Load(), 1, [], [cut_off.index]))
    assert core.sent_to(cut_off.identity) == [RequestsLost([], all_of=blind.incarnation)]
    assert counts(core) == [0, 1]
    for number in range(4):
        cut_off.submit(f"again-{number}")
    assert counts(core) == [0, 5]
    clients[1].submit("other")
    assert counts(core) == [1, 5], "for others nothing has changed"
    pass_time(core, CUT_OFF_S, *engines, *clients)
    cut_off.submit("later")
    assert counts(core) == [2, 5], "it is tried again"


def pass_time(core: Core, seconds: float, *members: FakeEngine | FakeClient) -> None:
    """With a sign of life from each of them every second."""
    for _ in range(round(seconds)):
        core.wait(1.0)
        for each in members:
            each.report() if isinstance(each, FakeEngine) else each.heartbeat()
    core.end_turn()


def test_with_no_engine_core_that_reaches_it_an_api_server_gets_an_answer_or_waits_for_the_next_try(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    engine.say(LoadReport(Load(), 0, [], [client.index, ClientIndex(12345)]))
    assert rejection(client.submit("r1")) is RejectReason.NO_ENGINE
    assert client.submit("r2", attempt=1) is None
    pass_time(core, CUT_OFF_S - 1, engine, client)
    assert counts(core) == [0]
    pass_time(core, 1, engine, client)
    assert counts(core) == [1]
