"""What the engine core says to the coordinator, and when."""

from typing import TypeVar

import msgspec
import pytest

from engine_core.coordinator_link import (
    CoordinatorLink,
    DropMalformed,
    EngineIdentity,
    LinkCommand,
    Send,
    SendFailed,
    TellCore,
    TellOutputs,
)
from engine_core.events import (
    ClientsChanged,
    CoordinatorRefused,
    CoordinatorWelcomed,
    CoreStatus,
    Joined,
    RequestArrived,
    RequestInvalid,
    RequestsAborted,
)
from protocol.codec import AT_ENGINE, encode, pack_token_ids
from protocol.heartbeats import HEARTBEAT_S
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    BlocksChanged,
    Card,
    ClientAddress,
    Clients,
    EngineCoreRequest,
    EngineHello,
    EngineWelcome,
    GetBlocks,
    Load,
    LoadReport,
    Message,
    ModelInfo,
    Refused,
    RequestKey,
)
from protocol.prefix_hash import BlockHash, block_key
from protocol.sampling import SamplingParams
from protocol.sockets import REFUSALS, ConnectionEvent

C = TypeVar("C")
MODEL = ModelInfo("m", "hash", 100)
IDENTITY = EngineIdentity(
    name="e0", incarnation=Incarnation("i0"), pid=7, model=MODEL, packed_card=b"card", vocab_size=50
)
CLIENTS = Clients([ClientAddress(ClientIndex(0), "ipc:///a")])


class Bench:
    """A link at a moment."""

    def __init__(self, stores_prefixes: bool = False) -> None:
        identity = msgspec.structs.replace(IDENTITY, stores_prefixes=stores_prefixes)
        self.link = CoordinatorLink(identity)
        self.now_s = 100.0

    def receive(self, message: Message, *buffers: bytes) -> list[LinkCommand]:
        return self.link.handle(AT_ENGINE.decode(encode(message, *buffers)), self.now_s)

    def connect(self) -> EngineHello:
        [hello] = self.link.handle(ConnectionEvent.UP, self.now_s)
        assert isinstance(hello, Send)
        assert isinstance(hello.message, EngineHello)
        return hello.message

    def join(self, index: int = 3) -> list[LinkCommand]:
        self.connect()
        commands = self.receive(welcome(index))
        self.receive(CLIENTS)
        return commands

    def request(self, name: str, client: int = 0) -> list[LinkCommand]:
        sampling = SamplingParams(max_tokens=5)
        return self.receive(
            EngineCoreRequest(RequestId(name), ClientIndex(client), 0, "m", 2, sampling, arrival_time_s=0.0),
            pack_token_ids([1, 2]),
        )

    def report(
        self,
        *ended: RequestKey,
        adds: int = 0,
        welcome: int = 1,
        progressed_s: float = 0.0,
        malformed: int = 0,
        **load: int,
    ) -> LoadReport | None:
        status = CoreStatus(Load(**load), list(ended), adds, welcome, progressed_s)  # type: ignore[arg-type]
        commands = self.link.handle(status, self.now_s, malformed)
        if not commands:
            return None
        [command] = commands
        assert isinstance(command, Send)
        assert isinstance(command.message, LoadReport)
        return command.message


def welcome(index: int = 3, want_card: bool = False) -> EngineWelcome:
    return EngineWelcome(PROTOCOL_VERSION, Incarnation("c0"), EngineIndex(index), want_card)


def key(name: str) -> RequestKey:
    return RequestKey(RequestId(name))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_request_that_overtakes_the_welcome_of_its_connection_is_left_to_come_again(bench: Bench) -> None:
    bench.join()
    bench.connect()
    assert bench.request("a") == []
    assert bench.connect().requests == [], "it is not among those that we have"
    bench.receive(welcome())
    assert bench.request("a") != []


def test_a_welcome_that_an_older_connection_left_behind_is_passed_over(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    assert (first.greeting, second.greeting) == (1, 2)
    late = EngineWelcome(PROTOCOL_VERSION, Incarnation("c0"), EngineIndex(3), greeting=first.greeting)
    newer = EngineWelcome(PROTOCOL_VERSION, Incarnation("c1"), EngineIndex(4), greeting=second.greeting)
    assert bench.receive(late) == []
    assert bench.receive(newer) != []
    assert bench.receive(Clients(CLIENTS.clients, 1, Incarnation("c1"))) != []
    assert bench.receive(late) == []
    assert bench.receive(Clients([], 9, Incarnation("c0"))) == [], "it would cut all streams"
    assert bench.connect().engine_index == 4


def test_api_servers_as_an_older_connection_had_them_are_passed_over(bench: Bench) -> None:
    bench.connect()
    bench.receive(welcome())
    first, second = Incarnation("c0"), Incarnation("c1")
    assert bench.receive(Clients(CLIENTS.clients, 2, first)) != []
    assert bench.receive(Clients([], 1, first)) == []
    assert bench.receive(Clients([], 3, first)) != []
    bench.receive(EngineWelcome(PROTOCOL_VERSION, second, EngineIndex(3)))
    assert bench.receive(Clients(CLIENTS.clients, 1, second)) != [], "the next coordinator counts anew"
    assert bench.receive(Clients([], 4, first)) == []


def test_hello_is_said_on_each_connection_and_restates_everything(bench: Bench) -> None:
    first = bench.connect()
    assert first == EngineHello(PROTOCOL_VERSION, "e0", Incarnation("i0"), 7, MODEL, greeting=1)
    bench.receive(welcome(5))
    bench.receive(CLIENTS)
    bench.request("a")
    bench.request("b")
    bench.report(key("a"), running=1)
    bench.link.handle(ConnectionEvent.DOWN, bench.now_s)
    assert bench.report(running=1, waiting=7) is None, "nobody is there to hear it"
    second = bench.connect()
    assert second.requests == [(key("b"), ClientIndex(0), 2)]
    assert second.engine_index == 5
    assert second.clients == [ClientIndex(0)], "whose streams it has not cut"
    assert (second.load.running, second.load.waiting) == (1, 7)


def test_requests_that_end_while_nobody_listens_are_not_in_the_next_hello(bench: Bench) -> None:
    bench.join()
    bench.request("a")
    bench.link.handle(ConnectionEvent.DOWN, bench.now_s)
    bench.report(key("a"))
    assert bench.connect().requests == []
    bench.receive(welcome())
    assert bench.report(waiting=0, draining=True) == LoadReport(Load(draining=True))


def test_a_welcome_is_passed_on_and_the_card_sent_when_wanted(bench: Bench) -> None:
    assert bench.join(index=3) == [
        TellOutputs(Joined(EngineIndex(3), Incarnation("c0"))),
        TellCore(CoordinatorWelcomed(1)),
    ]
    *_, card = bench.receive(welcome(want_card=True))
    assert card == Send(Card("hash"), (b"card",))


def test_the_output_thread_learns_of_clients_before_their_requests_run(bench: Bench) -> None:
    bench.connect()
    changed = ClientsChanged({ClientIndex(0): ClientAddress(ClientIndex(0), "ipc:///a")})
    assert bench.receive(CLIENTS) == [TellOutputs(changed), TellCore(changed)]


def test_requests_are_checked_and_passed_on(bench: Bench) -> None:
    bench.join()
    [command] = bench.request("a")
    assert isinstance(command, TellCore)
    assert isinstance(command.event, RequestArrived)
    [command] = bench.receive(
        EngineCoreRequest(RequestId("b"), ClientIndex(0), 0, "m", 1, SamplingParams(max_tokens=1), arrival_time_s=0.0),
        pack_token_ids([50]),
    )
    assert isinstance(command, TellCore)
    assert isinstance(command.event, RequestInvalid)


def test_a_request_of_an_unknown_client_is_malformed_and_ends(bench: Bench) -> None:
    bench.join()
    drop, command = bench.request("a", client=9)
    assert isinstance(drop, DropMalformed)
    assert isinstance(command, TellCore)
    assert isinstance(command.event, RequestInvalid)


def test_aborts_and_refusals_are_passed_on(bench: Bench) -> None:
    bench.join()
    assert bench.receive(Abort([key("a")])) == [TellCore(RequestsAborted([key("a")]))]
    assert bench.receive(Refused("no")) == [TellCore(CoordinatorRefused("no"))]


def test_a_changed_load_is_reported_at_once_an_unchanged_one_once_a_second(bench: Bench) -> None:
    bench.join()
    assert bench.report(running=1) is not None
    assert bench.report(running=1) is None
    assert bench.report(running=1, steps_total=9) is None
    bench.now_s += HEARTBEAT_S - 0.01
    assert bench.report(running=1) is None
    bench.now_s += 0.01
    assert bench.link.next_report_s == bench.now_s
    assert bench.report(running=1, steps_total=12) == LoadReport(
        Load(running=1, steps_total=12, last_step_age_s=bench.now_s)
    )
    assert bench.report(key("a"), running=1) is not None


def test_a_report_says_how_old_the_last_step_is_only_while_there_is_work(bench: Bench) -> None:
    bench.join()
    bench.now_s = 200.0
    busy, idle = bench.report(running=1, progressed_s=197.5), bench.report(progressed_s=197.5)
    assert busy is not None
    assert idle is not None
    assert (busy.load.last_step_age_s, idle.load.last_step_age_s) == (2.5, 0.0)


def test_a_report_says_how_much_was_malformed(bench: Bench) -> None:
    bench.join()
    report = bench.report(malformed=4, running=1)
    assert report is not None
    assert report.load.malformed_total == 4


def test_what_was_handled_before_the_last_welcome_is_not_counted(bench: Bench) -> None:
    bench.join()
    report = bench.report(adds=2, welcome=1, running=1)
    assert report is not None
    assert report.adds_received == 2
    bench.link.handle(ConnectionEvent.DOWN, bench.now_s)
    bench.join()
    report = bench.report(adds=2, welcome=1, running=2)
    assert report is not None
    assert report.adds_received == 0
    report = bench.report(adds=1, welcome=2, running=3)
    assert report is not None
    assert report.adds_received == 1


def test_nothing_is_reported_before_hello(bench: Bench) -> None:
    bench.now_s += 10
    assert bench.report(running=1) is None


def test_hello_is_said_again_after_a_failed_send_but_not_in_a_hurry(bench: Bench) -> None:
    bench.join()
    bench.request("a")
    assert bench.link.handle(SendFailed(), bench.now_s) == []
    assert bench.report(running=3) is None
    bench.now_s += HEARTBEAT_S
    [command] = bench.link.handle(CoreStatus(Load(running=4), [], 0, 1, 0.0), bench.now_s)
    assert isinstance(command, Send)
    assert isinstance(command.message, EngineHello)
    assert command.message.requests == [(key("a"), ClientIndex(0), 2)]
    assert command.message.load.running == 4


@pytest.mark.parametrize("event", [ConnectionEvent.KEY_REFUSED, ConnectionEvent.MISMATCH])
def test_who_is_refused_in_the_handshake_leaves(bench: Bench, event: ConnectionEvent) -> None:
    assert bench.link.handle(event, bench.now_s) == [TellCore(CoordinatorRefused(REFUSALS[event]))]


def test_a_handshake_that_was_broken_off_is_tried_again(bench: Bench) -> None:
    assert bench.link.handle(ConnectionEvent.BROKEN_OFF, bench.now_s) == []


# --- stored blocks ---

ONE, TWO = (BlockHash(bytes([number]) * 32) for number in (1, 2))


def blocks_told(commands: list[LinkCommand]) -> list[tuple[bool, bytes, bytes]]:
    """Anew, stored and evicted keys of each message about blocks."""
    sends = [command for command in commands if isinstance(command, Send)]
    return [(s.message.anew, *map(bytes, s.buffers)) for s in sends if isinstance(s.message, BlocksChanged)]  # type: ignore[misc]


def blocks_change(bench: Bench, changes: dict[BlockHash, bool], *ended: RequestKey) -> list[LinkCommand]:
    return bench.link.handle(CoreStatus(Load(), list(ended), 0, 1, 0.0, changes), bench.now_s)


def test_all_blocks_are_told_after_each_welcome_and_changes_from_then_on() -> None:
    bench = Bench(stores_prefixes=True)
    bench.connect()
    assert blocks_told(blocks_change(bench, {ONE: True})) == [], "whom to tell is not known yet"
    assert blocks_told(bench.receive(welcome())) == [(True, block_key(ONE), b"")]
    assert blocks_told(blocks_change(bench, {TWO: True})) == [(False, block_key(TWO), b"")]
    bench.link.handle(ConnectionEvent.DOWN, bench.now_s)
    assert blocks_told(blocks_change(bench, {ONE: False})) == []
    bench.connect()
    assert blocks_told(bench.receive(welcome())) == [(True, block_key(TWO), b"")]


def test_the_whole_is_told_when_the_coordinator_misses_something() -> None:
    bench = Bench(stores_prefixes=True)
    bench.join()
    blocks_change(bench, {ONE: True})
    assert blocks_told(bench.receive(GetBlocks())) == [(True, block_key(ONE), b"")]


def test_what_a_request_has_stored_is_told_before_its_end() -> None:
    bench = Bench(stores_prefixes=True)
    bench.join()
    bench.request("a")
    kinds = [type(c.message) for c in blocks_change(bench, {ONE: True}, key("a")) if isinstance(c, Send)]
    assert kinds == [BlocksChanged, LoadReport]


def test_after_a_message_that_could_not_be_sent_nothing_is_told_until_the_next_welcome() -> None:
    bench = Bench(stores_prefixes=True)
    bench.join()
    bench.link.handle(SendFailed(), bench.now_s)
    assert blocks_told(blocks_change(bench, {ONE: True})) == []
    bench.connect()
    assert blocks_told(bench.receive(welcome())) == [(True, block_key(ONE), b"")]


def test_who_stores_no_prefixes_tells_of_none(bench: Bench) -> None:
    assert blocks_told(bench.join()) == []
    assert blocks_told(bench.receive(GetBlocks())) == []
