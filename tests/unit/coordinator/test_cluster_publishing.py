"""What subscribers of the cluster state see."""

import math

import pytest
from core_fixture import TIMEOUT_S, Core, FakeClient, FakeEngine, key

from coordinator.events import Subscribed
from protocol.messages import ClusterSnapshot, EngineUpdate, Heartbeat, Load, Message


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engine(core: Core) -> FakeEngine:
    engine = FakeEngine(core)
    engine.hello()
    core.end_turn()
    return engine


@pytest.fixture
def client(core: Core) -> FakeClient:
    client = FakeClient(core)
    client.hello()
    core.end_turn()
    return client


def flushed(core: Core) -> list[Message]:
    return core.published(core.end_turn())


def test_each_change_of_members_publishes_the_whole_state(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    seen = []
    for change in (engine.hello, client.hello, engine.unreachable, client.unreachable):
        change()
        (snapshot,) = flushed(core)
        assert isinstance(snapshot, ClusterSnapshot)
        seen.append(([each.name for each in snapshot.engines], snapshot.api_servers))
    assert seen == [(["engine-0"], []), (["engine-0"], ["api-0"]), ([], ["api-0"]), ([], [])]


def test_a_new_subscriber_gets_the_whole_state(core: Core, engine: FakeEngine) -> None:
    core.handle(Subscribed())
    assert [type(message) for message in flushed(core)] == [ClusterSnapshot]


def test_a_changed_load_publishes_one_update_however_often_it_changed(core: Core, engine: FakeEngine) -> None:
    for running in range(1, 10):
        engine.report(Load(running=running))
    (update,) = flushed(core)
    assert isinstance(update, EngineUpdate)
    assert update.engine.load.running == 9


def test_an_unchanged_report_publishes_nothing(core: Core, engine: FakeEngine) -> None:
    engine.report(Load(running=1))
    flushed(core)
    engine.report(Load(running=1))
    assert flushed(core) == []


def test_routing_and_finishing_publish_the_number_of_requests(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    client.submit("r1")
    (update,) = flushed(core)
    assert update.engine.requests == 1  # type: ignore[attr-defined]
    engine.report(finished=[key("r1")])
    (update,) = flushed(core)
    assert update.engine.requests == 0  # type: ignore[attr-defined]


def test_sequence_numbers_have_no_gap(core: Core, engine: FakeEngine) -> None:
    core.handle(Subscribed())
    numbers = [message.sequence for message in flushed(core)]  # type: ignore[attr-defined]
    for running in range(1, 4):
        engine.report(Load(running=running))
        numbers += [message.sequence for message in flushed(core)]  # type: ignore[attr-defined]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_refusals_are_counted_in_a_snapshot_within_a_second(core: Core, engine: FakeEngine, client: FakeClient) -> None:
    for number in range(5):
        client.submit(f"r{number}", model="other")
    assert flushed(core) == []
    (snapshot,) = core.published(core.wait(1.0))
    assert isinstance(snapshot, ClusterSnapshot)
    assert snapshot.rejected_total["unknown_model"] == 5


def test_an_idle_coordinator_has_nothing_to_do_but_watch_heartbeats(
    core: Core, engine: FakeEngine, client: FakeClient
) -> None:
    assert core.state.next_deadline_s() == core.now_s + TIMEOUT_S
    for _ in range(10):
        core.now_s += 1.0
        engine.report()
        assert client.say(Heartbeat()) == [Heartbeat()]
        assert core.end_turn() == []


def test_without_members_it_sleeps_for_ever(core: Core) -> None:
    assert core.state.next_deadline_s() == math.inf
