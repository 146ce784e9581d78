"""Hellos that are heard in another order than they were said."""

import pytest
from core_fixture import Core, FakeClient, FakeEngine

from protocol.messages import Accepted, ClientWelcome, EngineWelcome, Refused


@pytest.fixture
def core() -> Core:
    return Core()


def test_the_hello_of_a_dead_engine_core_does_not_displace_its_successor(core: Core) -> None:
    successor = FakeEngine(core, "engine-0", "e2")
    successor.hello(greeting=1, started_s=200.0)
    (refused,) = FakeEngine(core, "engine-0", "e1").hello(greeting=3, started_s=100.0)
    assert isinstance(refused, Refused) and "newer process" in refused.reason
    assert core.sent_to(successor.identity) == [], "it is not told to leave"
    client = FakeClient(core)
    client.hello()
    assert isinstance(client.submit("r1"), Accepted)


def test_the_hello_of_a_dead_api_server_does_not_displace_its_successor(core: Core) -> None:
    successor = FakeClient(core, "api-0", "a2")
    successor.hello(greeting=1, started_s=200.0)
    (refused,) = FakeClient(core, "api-0", "a1").hello(greeting=3, started_s=100.0)
    assert isinstance(refused, Refused)
    assert core.sent_to(successor.identity) == []


def test_a_successor_that_was_given_up_keeps_its_name(core: Core) -> None:
    successor = FakeClient(core, "api-0", "a2")
    successor.hello(greeting=1, started_s=200.0)
    successor.unreachable()
    assert isinstance(FakeClient(core, "api-0", "a1").hello(started_s=100.0)[0], Refused)
    successor.heartbeat()
    assert any(isinstance(message, ClientWelcome) for message in core.sent_to(successor.identity)), "taken back"


def test_a_process_that_started_later_takes_the_name(core: Core) -> None:
    older = FakeEngine(core, "engine-0", "e1")
    older.hello(started_s=100.0)
    assert isinstance(FakeEngine(core, "engine-0", "e2").hello(started_s=200.0)[0], EngineWelcome)
    assert isinstance(core.sent_to(older.identity)[-1], Refused)


def test_an_older_hello_of_the_same_process_is_passed_over(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    client.hello(greeting=2)
    engine.hello(greeting=2)
    accepted = client.submit("r1")
    assert isinstance(accepted, Accepted)
    assert engine.hello(greeting=1) == []
    assert client.hello(greeting=1) == []
    engine.report(adds_received=1)
    assert core.state.num_requests == 1, "by its older Hello the engine core does not have it"


def test_a_welcome_names_the_hello_that_it_answers(core: Core) -> None:
    assert FakeEngine(core).hello(greeting=5)[0].greeting == 5  # type: ignore[attr-defined]
    client = FakeClient(core)
    assert client.hello(greeting=6)[0].greeting == 6  # type: ignore[attr-defined]
    client.unreachable()
    client.heartbeat()
    (welcome,) = (each for each in core.sent_to(client.identity) if isinstance(each, ClientWelcome))
    assert welcome.greeting == 6


def test_a_request_that_waited_is_answered_by_the_last_connection() -> None:
    core = Core(settled=False)
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello(greeting=1)
    assert client.submit("r1") is None
    client.hello(greeting=2)
    assert client.submit("r1") is None, "sent again, since it had no answer"
    engine.hello()
    (accepted,) = (each for each in core.sent_to(client.identity) if isinstance(each, Accepted))
    assert accepted.greeting == 2
