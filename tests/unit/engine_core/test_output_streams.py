"""Outputs on their way to API servers: numbered, bounded, without a wait."""

import math

import pytest
import zmq

from engine_core import output_streams
from engine_core.output_streams import OutputStreams
from protocol.codec import AT_OUTPUTS, Frame
from protocol.errors import AddressError, BadKey
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import ClientAddress, EngineCoreOutput, EngineCoreOutputs

ONE, TWO = ClientIndex(1), ClientIndex(2)


class FakePush:
    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[EngineCoreOutputs] = []
        self.is_full = False
        self.closed_with: list[int | None] = []

    def send_multipart(self, msg_parts: list[Frame], flags: int = 0) -> None:
        assert flags == zmq.NOBLOCK
        if self.is_full:
            raise zmq.Again
        self.sent.append(AT_OUTPUTS.decode(msg_parts).message)

    def close(self, linger: int | None = None) -> None:
        self.closed_with.append(linger)


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.opened: list[FakePush] = []
        self.streams = OutputStreams(Incarnation("i"), self._open)
        self.streams.joined(EngineIndex(4))
        self.set_clients({ONE: "ipc:///one", TWO: "ipc:///two"})

    def set_clients(self, addresses: dict[ClientIndex, str]) -> None:
        self.streams.set_clients({index: ClientAddress(index, address) for index, address in addresses.items()})

    def _open(self, client: ClientAddress) -> FakePush:
        if client.address == "nonsense":
            raise AddressError("no address")
        if client.public_key:
            raise BadKey("no key of our own")
        self.opened.append(FakePush(client.address))
        return self.opened[-1]

    def send(self, *clients: ClientIndex) -> list[ClientIndex]:
        output = EngineCoreOutput(RequestId("r"), 0, 0, [5])
        stuck = self.streams.send({client: [output] for client in clients}, 12.5, self.now_s)
        self.streams.check_invariants()
        return stuck

    def send_due_tails(self) -> list[float]:
        """Lets time pass until nothing is due any more; returns when something was."""
        times: list[float] = []
        while self.streams.next_tail_s < math.inf:
            self.now_s = self.streams.next_tail_s
            times.append(self.now_s)
            self.streams.send_tails(12.5, self.now_s)
        return times


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_each_client_gets_its_own_numbered_messages(bench: Bench) -> None:
    assert bench.send(ONE, TWO) == bench.send(ONE) == []
    one, two = bench.opened
    assert (one.address, two.address) == ("ipc:///one", "ipc:///two")
    assert [message.sequence for message in one.sent] == [0, 1]
    assert [message.sequence for message in two.sent] == [0]
    assert one.sent[0] == EngineCoreOutputs(
        EngineIndex(4), Incarnation("i"), 0, 12.5, [EngineCoreOutput(RequestId("r"), 0, 0, [5])], ONE
    )


def test_a_stream_that_falls_silent_shows_where_it_ends_a_few_times(bench: Bench) -> None:
    assert bench.streams.next_tail_s == math.inf
    bench.send(ONE)
    assert bench.send_due_tails() == [101.0, 103.0, 107.0]
    (one,) = bench.opened
    assert [(message.sequence, message.outputs) for message in one.sent[1:]] == [(1, []), (2, []), (3, [])]


def test_outputs_put_the_tail_off(bench: Bench) -> None:
    bench.send(ONE, TWO)
    bench.now_s += 0.9
    bench.send(ONE)
    bench.now_s = 101.0
    assert bench.streams.send_tails(12.5, bench.now_s) == []
    one, two = bench.opened
    assert [len(message.outputs) for message in one.sent] == [1, 1]
    assert [len(message.outputs) for message in two.sent] == [1, 0]
    assert bench.streams.next_tail_s == pytest.approx(101.9)


def test_after_outputs_that_were_not_taken_the_tail_shows_the_gap(bench: Bench) -> None:
    bench.send(ONE)
    bench.opened[0].is_full = True
    assert bench.send(ONE) == [ONE]
    bench.send_due_tails()
    assert [message.sequence for message in bench.opened[1].sent] == [2, 3, 4]


def test_outputs_for_an_unknown_client_are_dropped(bench: Bench) -> None:
    assert bench.send(ClientIndex(9)) == []
    assert bench.opened == []


def test_a_full_queue_gives_the_client_up_and_the_gap_shows(bench: Bench) -> None:
    bench.send(ONE, TWO)
    bench.opened[0].is_full = True
    assert bench.send(ONE, TWO) == [ONE]
    assert bench.opened[0].closed_with == [0]
    assert [message.sequence for message in bench.opened[1].sent] == [0, 1]
    assert bench.send(ONE) == []
    assert [message.sequence for message in bench.opened[2].sent] == [2], "the client must see that 1 is missing"


def test_a_client_whose_key_cannot_be_used_is_given_up(bench: Bench) -> None:
    bench.streams.set_clients({ONE: ClientAddress(ONE, "tcp://10.0.0.1:5", "key")})
    assert bench.send(ONE) == [ONE]


def test_an_address_that_is_none_gives_the_client_up(bench: Bench) -> None:
    bench.set_clients({ONE: "nonsense", TWO: "ipc:///two"})
    assert bench.send(ONE, TWO) == [ONE]


def test_clients_that_left_are_closed_and_the_numbers_go_on_for_who_comes_back(bench: Bench) -> None:
    bench.send(ONE, TWO)
    bench.set_clients({ONE: "ipc:///successor", TWO: "ipc:///two"})
    assert bench.opened[0].closed_with == [0]
    assert bench.opened[1].closed_with == []
    bench.send(ONE, TWO)
    assert (bench.opened[2].address, bench.opened[2].sent[0].sequence) == ("ipc:///successor", 1)
    assert bench.opened[1].sent[-1].sequence == 1
    bench.set_clients({TWO: "ipc:///two"})
    bench.set_clients({ONE: "ipc:///one", TWO: "ipc:///two"})
    bench.send(ONE)
    assert bench.opened[3].sent[0].sequence == 2, "what was queued for it is gone: it must see a gap"


def test_clients_that_left_are_remembered_up_to_a_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_streams, "MAX_ENDED", 2)
    for index in range(10, 15):
        bench.set_clients({ClientIndex(index): "ipc:///each"})
        bench.send(ClientIndex(index))
    bench.set_clients({ClientIndex(10): "ipc:///each", ClientIndex(13): "ipc:///each"})
    bench.send(ClientIndex(10), ClientIndex(13))
    assert [push.sent[0].sequence for push in bench.opened[-2:]] == [0, 1]


def test_at_the_end_what_is_queued_is_still_sent(bench: Bench) -> None:
    bench.send(ONE)
    bench.streams.close()
    assert bench.opened[0].closed_with == [None]
