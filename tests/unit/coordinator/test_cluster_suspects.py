"""Requests that several engine cores died with run one at a time, in the whole cluster."""

import pytest
from core_fixture import Core, FakeClient, FakeEngine, key

from coordinator.trial import SUSPECT_AFTER_DEATHS
from protocol.messages import Abort, Accepted, Cleared, LoadReport, Message, RequestKey


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engines(core: Core) -> list[FakeEngine]:
    both = [FakeEngine(core, f"engine-{number}", f"e{number}") for number in range(2)]
    for engine in both:
        engine.hello()
    return both


@pytest.fixture
def clients(core: Core) -> list[FakeClient]:
    both = [FakeClient(core, f"api-{number}", f"a{number}") for number in range(2)]
    for client in both:
        client.hello()
    return both


def submit_suspects(clients: list[FakeClient]) -> None:
    """r0 of the first API server, which is accepted, and r1 of the second, which waits."""
    assert isinstance(clients[0].submit("r0", attempt=2, deaths=SUSPECT_AFTER_DEATHS), Accepted)
    assert clients[1].submit("r1", attempt=2, deaths=SUSPECT_AFTER_DEATHS) is None


def accepted_after_turn(core: Core, client: FakeClient) -> list[RequestKey]:
    messages: list[Message] = core.sent_to(client.identity, core.end_turn())
    return [message.key for message in messages if isinstance(message, Accepted)]


def test_one_death_makes_nobody_a_suspect(engines: list[FakeEngine], clients: list[FakeClient]) -> None:
    for number in range(4):
        assert isinstance(clients[number % 2].submit(f"r{number}", attempt=1, deaths=1), Accepted)


def test_a_suspect_waits_while_another_one_runs(
    core: Core, engines: list[FakeEngine], clients: list[FakeClient]
) -> None:
    submit_suspects(clients)
    assert accepted_after_turn(core, clients[1]) == []
    assert isinstance(clients[1].submit("r2"), Accepted), "others do not wait"


def test_cleared_it_lets_the_next_one_run(core: Core, engines: list[FakeEngine], clients: list[FakeClient]) -> None:
    submit_suspects(clients)
    clients[0].say(Cleared([key("r0", 1)]))
    assert accepted_after_turn(core, clients[1]) == [], "another attempt"
    clients[0].say(Cleared([key("r0", 2)]))
    assert accepted_after_turn(core, clients[1]) == [key("r1", 2)]


@pytest.mark.parametrize("end", ["finished", "aborted", "engine core dies", "API server dies"])
def test_however_it_ends_the_next_one_runs(
    core: Core, engines: list[FakeEngine], clients: list[FakeClient], end: str
) -> None:
    submit_suspects(clients)
    (engine,) = [each for each in engines if core.state_of(each).requests == 1]
    match end:
        case "finished":
            engine.say(LoadReport(core.state_of(engine).load, 1, [key("r0", 2)]))
        case "aborted":
            clients[0].say(Abort([key("r0", 2)]))
        case "engine core dies":
            clients[0].exited(engine.name, engine.pid)
        case _:
            clients[1].exited(clients[0].name, clients[0].pid)
    assert accepted_after_turn(core, clients[1]) == [key("r1", 2)]


def test_a_suspect_that_waits_can_be_aborted(core: Core, engines: list[FakeEngine], clients: list[FakeClient]) -> None:
    submit_suspects(clients)
    clients[1].say(Abort([key("r1", 2)]))
    clients[0].say(Cleared([key("r0", 2)]))
    assert accepted_after_turn(core, clients[1]) == []


def test_the_next_attempt_of_the_suspect_that_ran_is_its_own_successor(
    engines: list[FakeEngine], clients: list[FakeClient]
) -> None:
    submit_suspects(clients)
    assert isinstance(clients[0].submit("r0", attempt=3, deaths=SUSPECT_AFTER_DEATHS), Accepted)
