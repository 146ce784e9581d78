"""Garbage on each of the coordinator's sockets: counted, logged without a flood, and the service goes on."""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from running_coordinator import Member, Subscriber, Wire, WireClient, WireEngine, config_in, running_coordinator

from protocol.codec import AT_SUBSCRIBER
from protocol.messages import TYPE_NUMBERS, Accepted

Context = zmq.Context[zmq.Socket[bytes]]
NUM_FRAMES = 300


def garbage(seed: int) -> list[list[bytes]]:
    """Random frames, many with a type byte that exists."""
    random_ = random.Random(seed)
    types = [bytes([number]) for number in TYPE_NUMBERS.values()]
    messages = []
    for _ in range(NUM_FRAMES):
        first = random_.choice([random_.choice(types), random_.randbytes(random_.randrange(4))])
        rest = [random_.randbytes(random_.randrange(40)) for _ in range(random_.randrange(4))]
        messages.append([first, *rest])
    return messages


@pytest.mark.parametrize("kind", [WireEngine, WireClient])
def test_garbage_from_a_stranger(
    directory: Path, context: Context, caplog: pytest.LogCaptureFixture, kind: Callable[..., Member]
) -> None:
    config = config_in(directory)
    with caplog.at_level(logging.WARNING, "shoal.protocol"), running_coordinator(config):
        subscriber, engine, client = (
            Subscriber(context, config),
            WireEngine(context, config),
            WireClient(context, config),
        )
        engine.join()
        client.join()
        stranger = kind(context, config, "stranger")
        for frames in garbage(seed=1):
            stranger.send_raw(frames)
        while subscriber.wait_for_snapshot(engines=1, api_servers=1).malformed_total < NUM_FRAMES:
            pass
        client.submit("r1")
        client.expect(Accepted)
    assert 1 <= len(caplog.records) <= 3, "one line a second at most"


@pytest.mark.parametrize("kind", [WireEngine, WireClient])
def test_a_member_that_sends_garbage_is_still_served(
    directory: Path, context: Context, kind: Callable[..., Member]
) -> None:
    config = config_in(directory)
    with running_coordinator(config):
        subscriber = Subscriber(context, config)
        engine, client = WireEngine(context, config), WireClient(context, config)
        engine.join()
        client.join()
        member = engine if kind is WireEngine else client
        for frames in garbage(seed=2)[:90]:
            member.send_raw(frames)
        while subscriber.wait_for_snapshot(engines=1, api_servers=1).malformed_total < 90:
            pass
        client.submit("r1")
        client.expect(Accepted)


def test_garbage_from_a_subscriber(directory: Path, context: Context) -> None:
    config = config_in(directory)
    with running_coordinator(config):
        subscriber, engine = Subscriber(context, config), WireEngine(context, config)
        engine.join()
        subscriber.wait_for_snapshot(engines=1, api_servers=0)
        upstream = context.socket(zmq.XSUB)
        upstream.connect(config.cluster_address)
        rude = Wire(upstream, AT_SUBSCRIBER)  # type: ignore[arg-type]
        rude.send_raw([b"\x01"])
        rude.send_raw([b"\x07 nonsense"])
        while subscriber.wait_for_snapshot(engines=1, api_servers=0).malformed_total < 1:
            pass


def test_a_frame_beyond_the_limit_costs_its_sender_the_connection_only(directory: Path, context: Context) -> None:
    config = config_in(directory)
    with running_coordinator(config):
        engine, client = WireEngine(context, config), WireClient(context, config)
        engine.join()
        client.join()
        stranger = WireClient(context, config, "stranger")
        stranger.wait_until_up()
        stranger.send_raw([b"\x01", bytes(65 * 1024 * 1024)])
        stranger.wait_until_up()
        client.submit("r1")
        client.expect(Accepted)
