"""A PUSH socket over TCP says when nobody will take what it is given."""

from collections.abc import Iterator

import pytest
import zmq

from engine_core.output_streams import TAIL_DELAYS_S
from engine_core.watched_push import UNREACHABLE_AFTER_S, WatchedPush
from protocol.errors import AddressError
from protocol.heartbeats import SILENCE_S
from protocol.sockets import SocketKind, open_socket, open_watched_push


def test_it_is_noticed_before_a_silent_stream_sends_for_the_last_time() -> None:
    assert sum(TAIL_DELAYS_S) > SILENCE_S + UNREACHABLE_AFTER_S


class Bench:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.now_s = 50.0
        opened, self.monitor = open_watched_push(context, address)
        self.push = WatchedPush(opened, self.monitor, lambda: self.now_s)

    def wait_for_news(self) -> None:
        assert self.monitor.poll(5_000)


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_without_a_connection_it_queues_for_a_while(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    bench = Bench(context, "tcp://127.0.0.1:9")
    bench.now_s += UNREACHABLE_AFTER_S - 0.1
    bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    bench.now_s += 0.1
    with pytest.raises(AddressError, match="no connection for 3 s"):
        bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    bench.push.close(0)


def test_the_time_counts_from_the_loss_of_the_connection(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    receiver, address = open_socket(context, SocketKind.OUTPUTS_IN, "tcp://127.0.0.1:0")
    bench = Bench(context, address)
    bench.wait_for_news()
    bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    assert receiver.recv() == b"x"
    bench.now_s += 1_000
    bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    receiver.close(0)
    bench.wait_for_news()
    bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    bench.now_s += UNREACHABLE_AFTER_S
    with pytest.raises(AddressError):
        bench.push.send_multipart([b"x"], zmq.NOBLOCK)
    bench.push.close(0)
