"""The coordinator over real sockets."""

from pathlib import Path

import pytest
import zmq
from running_coordinator import Subscriber, WireClient, WireEngine, config_in, running_coordinator

from protocol import sockets
from protocol.codec import Frame
from protocol.messages import (
    Abort,
    Accepted,
    Card,
    Clients,
    EngineCoreRequest,
    EngineLost,
    EngineUpdate,
    EngineWelcome,
    GetCard,
    Load,
    LoadReport,
    RequestKey,
)

Context = zmq.Context[zmq.Socket[bytes]]


def bytes_of(frames: list[Frame]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def test_a_request_reaches_the_engine_core_as_it_was_sent(directory: Path, context: Context) -> None:
    config = config_in(directory)
    with running_coordinator(config):
        engine, client = WireEngine(context, config), WireClient(context, config)
        engine.join()
        client.join()
        frames = client.submit("r1", range(10_000))
        assert client.expect(Accepted).engine_incarnation == engine.incarnation
        assert engine.expect(Clients).clients == []  # from the welcome
        assert [each.client_index for each in engine.expect(Clients).clients] == [client.index]
        received = engine.receive()
        assert isinstance(received.message, EngineCoreRequest)
        assert bytes_of(list(received.frames)) == bytes_of(frames)
        client.send(Abort([received.message.key]))
        assert engine.expect(Abort).keys == [received.message.key]


def test_members_may_come_before_the_coordinator_and_stay_through_its_restart(
    directory: Path, context: Context
) -> None:
    config = config_in(directory)
    engine, client = WireEngine(context, config), WireClient(context, config)
    with running_coordinator(config):
        engine.join()
        first = client.join()
    with running_coordinator(config):
        engine.join()
        second = client.join()
        client.submit("r1")
        client.expect(Accepted)
    assert first.incarnation != second.incarnation
    assert first.client_index == second.client_index


def test_a_dead_engine_core_is_told_to_the_api_server(directory: Path, context: Context) -> None:
    config = config_in(directory, heartbeat_timeout_s=1.0)
    with running_coordinator(config):
        engine, client = WireEngine(context, config), WireClient(context, config)
        engine.join()
        client.join()
        engine.close()
        client.submit("r1")
        assert client.expect_alive(EngineLost).incarnation == engine.incarnation


def test_a_silent_engine_core_is_given_up_and_taken_back_when_it_is_heard(directory: Path, context: Context) -> None:
    config = config_in(directory, heartbeat_timeout_s=0.2)
    with running_coordinator(config):
        subscriber, engine = Subscriber(context, config), WireEngine(context, config)
        engine.join()
        subscriber.wait_for_snapshot(engines=1, api_servers=0)
        subscriber.wait_for_snapshot(engines=0, api_servers=0)
        engine.send(LoadReport(Load(running=1)))
        engine.expect(EngineWelcome)
        subscriber.wait_for_snapshot(engines=1, api_servers=0)


def test_each_subscriber_gets_a_snapshot_and_then_updates(directory: Path, context: Context) -> None:
    config = config_in(directory, heartbeat_timeout_s=60.0)
    with running_coordinator(config):
        engine = WireEngine(context, config)
        engine.join()
        first, second = Subscriber(context, config), Subscriber(context, config)
        first.wait_for_snapshot(engines=1, api_servers=0)
        second.wait_for_snapshot(engines=1, api_servers=0)
        engine.send(LoadReport(Load(running=7)))
        for subscriber in (first, second):
            assert subscriber.expect(EngineUpdate).engine.load.running == 7


def test_a_card_goes_to_the_api_server_that_asks(directory: Path, context: Context) -> None:
    config = config_in(directory)
    with running_coordinator(config):
        engine, client = WireEngine(context, config), WireClient(context, config)
        assert engine.join().want_card
        client.join()
        client.send(GetCard("hash-of-small"))
        engine.send(Card("hash-of-small"), b"packed" * 100_000)
        received = client.receive()
        assert received.message == Card("hash-of-small")
        assert bytes(received.buffers[0]) == b"packed" * 100_000


def test_a_member_that_stops_reading_is_dropped_and_the_others_are_served(
    directory: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = sockets._Profile(zmq.ROUTER, True, 10, 0)
    monkeypatch.setitem(sockets._PROFILES, sockets.SocketKind.CLIENTS, small)
    config = config_in(directory, heartbeat_timeout_s=60.0)
    with running_coordinator(config):
        engine, stuck, client = (
            WireEngine(context, config),
            WireClient(context, config, "api-0"),
            WireClient(context, config, "api-1"),
        )
        engine.join()
        client.join()
        subscriber = Subscriber(context, config)
        subscriber.wait_for_snapshot(engines=1, api_servers=1)
        stuck.socket.setsockopt(zmq.RCVHWM, 1)
        stuck.join()
        subscriber.wait_for_snapshot(engines=1, api_servers=2)
        engine.send(Card("hash-of-small"), b"packed" * 100_000)
        for _ in range(500):  # 300 MB of answers that it does not read
            stuck.send(GetCard("hash-of-small"))
        snapshot = subscriber.wait_for_snapshot(engines=1, api_servers=1)
        assert snapshot.api_servers == ["api-1"]
        client.submit("r1")
        assert client.expect(Accepted).key == RequestKey("r1")  # type: ignore[arg-type]
