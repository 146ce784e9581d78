"""A coordinator that has just started, perhaps in the place of one that died."""

import pytest
from core_fixture import TIMEOUT_S, Core, FakeClient, FakeEngine, key

from coordinator import dispatcher, waiting_room
from coordinator.events import Subscribed
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    CardUnknown,
    Clients,
    ClientWelcome,
    EngineCoreRequest,
    EngineHello,
    EngineLost,
    EngineRun,
    EngineWelcome,
    GetCard,
    Heartbeat,
    LoadReport,
    Message,
    Rejected,
    RejectReason,
    RequestsLost,
)


@pytest.fixture
def core() -> Core:
    return Core(settled=False, incarnation="c2")


def counts(core: Core) -> list[int]:
    core.handle(Subscribed())
    (snapshot,) = core.published(core.end_turn())
    return [engine.requests for engine in snapshot.engines]  # type: ignore[attr-defined]


def test_an_engine_core_keeps_the_streams_of_api_servers_that_are_still_to_come(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    answer = engine.hello((key("r1"), ClientIndex(42), 10))
    assert [type(message) for message in answer] == [EngineWelcome], "Clients would make it drop r1"
    client.hello(EngineRun(EngineIndex(0), engine.incarnation), index=42)
    assert client.index == 42
    assert [type(message) for message in core.sent_to(engine.identity)] == [Clients]
    assert not [m for m in core.sent_to(client.identity) if isinstance(m, EngineLost)]
    assert counts(core) == [1]
    engine.report(finished=[key("r1")])
    assert counts(core) == [0]


def test_requests_of_an_api_server_that_does_not_come_are_dropped(core: Core) -> None:
    engine = FakeEngine(core)
    engine.hello((key("r1"), ClientIndex(42), 10))
    core.wait(TIMEOUT_S - 0.5)
    engine.report()
    assert counts(core) == [1]
    commands = core.wait(1.0)
    (told,) = core.sent_to(engine.identity, commands)
    assert isinstance(told, Clients) and told.clients == []
    assert counts(core) == [0]


def test_submissions_wait_for_an_engine_core_to_say_hello(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    assert client.submit("r1") is None
    assert client.submit("r1") is None, "sent again"
    answer = engine.hello()
    assert [type(message) for message in answer] == [EngineWelcome, Clients, EngineCoreRequest]
    assert [type(message) for message in core.sent_to(client.identity)] == [Accepted]


def test_submissions_wait_for_an_engine_core_that_waits_for_another_api_server(core: Core) -> None:
    client, engine, late = FakeClient(core), FakeEngine(core), FakeClient(core, "api-1")
    client.hello()
    engine.hello((key("r1"), ClientIndex(42), 10))
    assert client.submit("r2") is None
    late.hello(index=42)
    assert [type(message) for message in core.sent_to(engine.identity)] == [Clients, EngineCoreRequest]
    assert [type(message) for message in core.sent_to(client.identity)] == [Accepted]


def test_submissions_that_waited_in_vain_are_refused(core: Core) -> None:
    client = FakeClient(core)
    client.hello()
    client.submit("r1")
    core.wait(TIMEOUT_S - 0.5)
    client.say(Heartbeat())
    (rejected,) = core.sent_to(client.identity, core.wait(1.0))
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.UNKNOWN_MODEL


def test_of_two_attempts_that_wait_the_newer_one_stays(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    client.submit("r1", attempt=1)
    assert client.submit("r1", attempt=0) == Rejected(key("r1", 0), RejectReason.DUPLICATE, _message(core, client))
    client.submit("r1", attempt=2)
    assert [m.key for m in core.sent_to(client.identity)] == [key("r1", 1)]  # type: ignore[attr-defined]
    engine.hello()
    assert [m.key for m in core.sent_to(client.identity)] == [key("r1", 2)]  # type: ignore[attr-defined]


def _message(core: Core, client: FakeClient) -> str:
    (rejected,) = core.sent_to(client.identity)
    return rejected.message  # type: ignore[attr-defined, no-any-return]


def test_an_aborted_submission_waits_no_longer(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    client.submit("r1")
    client.abort(key("r1"))
    assert not [m for m in engine.hello() if isinstance(m, EngineCoreRequest)]
    assert not core.sent_to(client.identity)


def test_a_submission_of_an_api_server_that_died_waits_no_longer(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    client.submit("r1")
    client.exited(client.name, client.pid)
    assert not [m for m in engine.hello() if isinstance(m, EngineCoreRequest)]
    assert counts(core) == [0]


def test_what_waits_is_limited(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "MAX_WAITING", 2)
    client = FakeClient(core)
    client.hello()
    assert [type(client.submit(f"r{number}")) for number in range(3)] == [type(None), type(None), Rejected]
    monkeypatch.setattr(waiting_room, "MAX_WAITING", 100)
    monkeypatch.setattr(waiting_room, "MAX_WAITING_BYTES", 1000)
    assert isinstance(client.submit("large", tokens=500), Rejected)


def test_an_abort_that_comes_before_the_engine_core_is_not_lost(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello(index=42)
    client.abort(key("r1"))
    assert Abort([key("r1")]) in engine.hello((key("r1"), ClientIndex(42), 10))
    assert counts(core) == [0]


def test_early_aborts_are_limited(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MAX_EARLY_ABORTS", 2)
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello(index=42)
    client.abort(*(key(f"r{number}") for number in range(3)))
    answer = engine.hello(*((key(f"r{number}"), ClientIndex(42), 10) for number in range(3)))
    assert Abort([key("r1"), key("r2")]) in answer


def test_of_a_request_on_two_engine_cores_one_is_aborted(core: Core) -> None:
    first, second, third = (FakeEngine(core, f"engine-{number}") for number in range(3))
    first.hello((key("r1", 1), ClientIndex(42), 10))
    assert Abort([key("r1", 1)]) in second.hello((key("r1", 1), ClientIndex(42), 10))
    third.hello((key("r1", 2), ClientIndex(42), 10))
    assert core.sent_to(first.identity) == [Abort([key("r1", 1)])]
    assert counts(core) == [0, 0, 1]


def test_a_request_sent_again_to_the_next_coordinator_runs_once(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    engine.hello((key("r1"), ClientIndex(42), 10))
    client.hello(index=42)
    assert isinstance(client.submit("r1"), Accepted)
    assert not core.sent_to(engine.identity)


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_request_sent_again_before_its_engine_core_says_hello_runs_once(core: Core, attempt: int) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello(index=42)
    assert client.submit("r1", attempt=attempt) is None
    engine.hello((key("r1", 0), ClientIndex(42), 10))
    answers = [m for m in core.sent_to(client.identity) if isinstance(m, Accepted)]
    assert [answer.key for answer in answers] == [key("r1", attempt)]
    core.wait(TIMEOUT_S - 0.5)
    assert counts(core) == [1]


@pytest.mark.parametrize("engine_first", [True, False])
def test_what_the_last_coordinator_accepted_and_did_not_hand_on_is_told_as_lost(core: Core, engine_first: bool) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    run = EngineRun(EngineIndex(0), engine.incarnation)
    listed = [(key(name), engine.incarnation) for name in ("r1", "r2")]
    messages: list[Message] = []
    for engine_speaks in (engine_first, not engine_first):
        if engine_speaks:
            engine.hello((key("r1"), ClientIndex(42), 10))
        else:
            client.hello(run, index=42, requests=listed)
        messages += core.sent_to(client.identity)
    assert [m for m in messages if isinstance(m, RequestsLost)] == [RequestsLost([key("r2")])]
    assert not [m for m in messages if isinstance(m, EngineLost)]


def test_a_hello_over_a_new_connection_to_the_same_coordinator_loses_nothing(core: Core) -> None:
    """What has ended there and is not in the table any more may still be on its way to the API server."""
    client, engine = FakeClient(core), FakeEngine(core)
    engine.hello()
    client.hello()
    client.submit("r1")
    engine.report(adds_received=1, finished=[key("r1")])
    again = client.hello(EngineRun(EngineIndex(0), engine.incarnation), requests=[(key("r1"), engine.incarnation)])
    assert [type(m) for m in again] == [ClientWelcome]


def test_an_engine_core_that_died_together_with_the_coordinator_is_told_as_lost(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    gone = EngineRun(EngineIndex(1), Incarnation("gone"))
    assert [type(m) for m in client.hello(EngineRun(EngineIndex(0), engine.incarnation), gone, index=42)] == [
        ClientWelcome
    ]
    engine.hello((key("r1"), ClientIndex(42), 10))
    core.wait(TIMEOUT_S - 0.5)
    engine.report()
    client.say(Heartbeat())
    (lost,) = core.sent_to(client.identity, core.wait(1.0))
    assert isinstance(lost, EngineLost) and lost.incarnation == "gone"


def test_an_api_server_that_comes_too_late_learns_that_its_streams_were_cut(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    engine.hello((key("r1"), ClientIndex(42), 10))
    core.wait(TIMEOUT_S - 0.5)
    engine.report()
    core.wait(1.0)
    (welcome,) = client.hello(EngineRun(EngineIndex(0), engine.incarnation), index=42)
    assert isinstance(welcome, ClientWelcome) and welcome.client_index != 42


def test_an_engine_core_that_has_only_outputs_left_for_an_api_server_does_not_cut_it_off(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    assert [type(message) for message in engine.hello(clients=[42])] == [EngineWelcome], "Clients would cut the stream"
    answer = client.hello(EngineRun(EngineIndex(0), engine.incarnation), index=42)
    assert [type(message) for message in answer] == [ClientWelcome]
    assert client.index == 42


@pytest.mark.parametrize("engine_first", [True, False])
def test_an_api_server_that_the_last_coordinator_had_given_up_learns_of_it(core: Core, engine_first: bool) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    run = EngineRun(EngineIndex(0), engine.incarnation)
    if engine_first:
        engine.hello(clients=[41])
        (welcome,) = client.hello(run, index=42)
        assert isinstance(welcome, ClientWelcome) and welcome.client_index != 42
    else:
        (welcome,) = client.hello(run, index=42)
        assert isinstance(welcome, ClientWelcome) and welcome.client_index == 42
        engine.hello(clients=[41])
        (lost,) = core.sent_to(client.identity)
        assert isinstance(lost, EngineLost) and lost.incarnation == engine.incarnation


def test_an_engine_core_keeps_the_index_that_an_earlier_coordinator_gave(core: Core) -> None:
    first, second = FakeEngine(core, "engine-0"), FakeEngine(core, "engine-1")
    for engine, index in ((second, 1), (first, 0)):
        hello = EngineHello(
            PROTOCOL_VERSION, engine.name, engine.incarnation, 1, engine.model, engine_index=EngineIndex(index)
        )
        assert engine.say(hello)[0].engine_index == index  # type: ignore[attr-defined]


def test_a_card_is_waited_for_until_nobody_can_send_it_any_more(core: Core) -> None:
    client = FakeClient(core)
    client.hello()
    assert client.say(GetCard("hash-of-small")) == []
    core.wait(TIMEOUT_S - 0.5)
    client.say(Heartbeat())
    assert core.sent_to(client.identity, core.wait(1.0)) == [CardUnknown("hash-of-small")]


def test_afterwards_submissions_do_not_wait(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    core.wait(TIMEOUT_S)
    client.hello()
    assert isinstance(client.submit("r1"), Rejected)
    engine.hello()
    engine.say(LoadReport(EngineHello(1, "", Incarnation(""), 0, engine.model).load))
    assert isinstance(client.submit("r1"), Accepted)
