"""Who is in the cluster: Hello, Welcome, Refused, death, silence, return."""

import pytest
from core_fixture import FIRST_CLIENT_INDEX, TIMEOUT_S, Core, FakeClient, FakeEngine, key

from coordinator import clients, engines, liveness
from coordinator.events import Command, Garbage, Identity, Link, Note, Send, Subscribed, TurnEnded, Unreachable
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    ClientAddress,
    ClientHello,
    Clients,
    ClientWelcome,
    ClusterSnapshot,
    EngineCoreRequest,
    EngineHello,
    EngineLost,
    EngineRun,
    EngineWelcome,
    Heartbeat,
    Load,
    LoadReport,
    MemberProcess,
    Refused,
    Rejected,
    RejectReason,
)


@pytest.fixture
def core() -> Core:
    return Core()


def test_an_engine_core_is_welcomed_with_its_index_and_the_api_servers(core: Core) -> None:
    client = FakeClient(core)
    client.hello()
    assert FakeEngine(core).hello() == [
        EngineWelcome(PROTOCOL_VERSION, Incarnation("c1"), EngineIndex(0), want_card=True),
        Clients([ClientAddress(client.index, "ipc:///run/api-0")], 1, Incarnation("c1")),
    ]


def test_engine_cores_get_different_indexes_and_keep_theirs_over_a_restart(core: Core) -> None:
    FakeEngine(core, "engine-a").hello()
    second = FakeEngine(core, "engine-b")
    assert second.hello()[0].engine_index == 1  # type: ignore[attr-defined]
    second.unreachable()
    restarted = FakeEngine(core, "engine-b", incarnation="e2")
    assert restarted.hello()[0].engine_index == 1  # type: ignore[attr-defined]


def test_clients_reaches_the_engine_cores_before_a_new_api_server_is_welcomed(core: Core) -> None:
    engine = FakeEngine(core)
    engine.hello()
    client = FakeClient(core)
    client.hello()
    sent = [command.message for command in core.commands if isinstance(command, Send)]
    assert [type(message) for message in sent] == [Clients, ClientWelcome]
    assert client.index == FIRST_CLIENT_INDEX


def test_api_servers_never_share_an_index(core: Core) -> None:
    first, second, third = (FakeClient(core, f"api-{i}") for i in range(3))
    first.hello()
    second.hello(index=FIRST_CLIENT_INDEX)  # claims what is taken
    third.hello(index=FIRST_CLIENT_INDEX + 2)  # claims what is free
    fourth = FakeClient(core, "api-3")
    fourth.hello()
    assert len({each.index for each in (first, second, third, fourth)}) == 4
    assert third.index == FIRST_CLIENT_INDEX + 2


def test_an_index_is_not_given_again_after_its_api_server_is_gone(core: Core) -> None:
    first, second, third = (FakeClient(core, f"api-{i}") for i in range(3))
    first.hello()
    second.hello()
    second.exited(first.name, first.pid)
    third.hello()
    assert len({first.index, second.index, third.index}) == 3


@pytest.mark.parametrize("kind", [FakeEngine, FakeClient])
def test_another_protocol_version_is_refused_naming_both(core: Core, kind: type[FakeEngine | FakeClient]) -> None:
    (refused,) = kind(core).hello(version=PROTOCOL_VERSION + 1)
    assert isinstance(refused, Refused)
    assert f"version {PROTOCOL_VERSION + 1}" in refused.reason
    assert f"version {PROTOCOL_VERSION}:" in refused.reason


@pytest.mark.parametrize("name", ["", "x" * 65, "engine-0\n2026-01-01 forged", "\x1b[2J", "tab\t"])
@pytest.mark.parametrize("kind", [FakeEngine, FakeClient])
def test_a_name_that_cannot_be_printed_is_refused_and_stays_out_of_the_log(
    core: Core, kind: type[FakeEngine | FakeClient], name: str
) -> None:
    (refused,) = kind(core, name).hello()
    assert isinstance(refused, Refused) and "printable characters" in refused.reason
    notes = [command.text for command in core.commands if isinstance(command, Note)]
    assert notes and all(note.isprintable() and len(note) < 400 for note in notes)


def test_a_model_name_that_cannot_be_printed_is_refused(core: Core) -> None:
    (refused,) = FakeEngine(core, model="small\n").hello()
    assert isinstance(refused, Refused) and refused.reason.isprintable()


def test_members_beyond_the_limit_are_refused(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.engine_link.MAX_ENGINES", 1)
    monkeypatch.setattr("coordinator.client_link.MAX_CLIENTS", 1)
    FakeEngine(core, "engine-0").hello()
    FakeClient(core, "api-0").hello()
    assert isinstance(FakeEngine(core, "engine-1").hello()[0], Refused)
    assert isinstance(FakeClient(core, "api-1").hello()[0], Refused)
    assert isinstance(FakeEngine(core, "engine-0", "e2").hello()[0], EngineWelcome), "a restart takes its own place"


def test_a_hello_under_another_identity_is_dropped(core: Core) -> None:
    liar = FakeEngine(core)
    hello = EngineHello(PROTOCOL_VERSION, "engine-1", liar.incarnation, 1, liar.model)
    assert liar.say(hello) == []
    assert core.drops() == ["engines: a Hello under another's identity"]


def test_what_comes_before_hello_is_dropped_and_counted(core: Core) -> None:
    FakeEngine(core).report()
    assert core.drops() == ["engines: LoadReport before Hello"]
    FakeClient(core).submit("r1")
    assert core.drops() == ["clients: EngineCoreRequest before Hello"]
    core.handle(Garbage(Link.CLUSTER, Identity(b""), "cluster: nonsense"))
    (snapshot,) = core.published(core.wait(1.0))
    assert snapshot.malformed_total == 3  # type: ignore[attr-defined]


def silent(core: Core) -> list[MemberProcess]:
    core.handle(Subscribed())
    (snapshot,) = core.published(core.end_turn())
    assert isinstance(snapshot, ClusterSnapshot)
    return snapshot.silent


def test_a_silent_engine_core_is_named_to_whoever_may_end_it_until_it_is_heard_or_replaced(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    assert silent(core) == []
    core.wait(TIMEOUT_S)
    assert silent(core) == [MemberProcess(engine.name, engine.pid)], "API servers are left alone"
    engine.report()
    assert silent(core) == []
    core.wait(TIMEOUT_S)
    FakeEngine(core, incarnation="e2").hello()
    assert silent(core) == []


def test_an_engine_core_that_cannot_be_reached_is_not_called_silent(core: Core) -> None:
    engine = FakeEngine(core)
    engine.hello()
    engine.unreachable()
    assert silent(core) == [], "it may be connecting again, or ending in order"


@pytest.mark.parametrize("sign", ["unreachable", "exited", "silent", "restarted"])
def test_a_lost_engine_core_is_told_to_every_api_server(core: Core, sign: str) -> None:
    engine, busy, idle = FakeEngine(core), FakeClient(core, "api-0"), FakeClient(core, "api-1")
    for member in (engine, busy, idle):
        member.hello()
    busy.submit("r1")
    commands = _lose_engine(core, engine, busy, idle, sign)
    for client in (busy, idle):
        (lost,) = core.sent_to(client.identity, commands)
        assert isinstance(lost, EngineLost)
        assert (lost.engine_index, lost.incarnation) == (EngineIndex(0), engine.incarnation)


def _lose_engine(core: Core, engine: FakeEngine, busy: FakeClient, idle: FakeClient, sign: str) -> list[Command]:
    match sign:
        case "unreachable":
            engine.unreachable()
        case "exited":
            busy.exited(engine.name, engine.pid)
        case "restarted":
            FakeEngine(core, engine.name, "e2").hello()
        case "silent":
            core.wait(TIMEOUT_S - 0.5)
            busy.say(Heartbeat())
            idle.say(Heartbeat())
            return core.wait(1.0)
    return core.commands


@pytest.mark.parametrize("sign", ["unreachable", "exited", "silent", "restarted"])
def test_a_lost_api_server_is_told_to_every_engine_core(core: Core, sign: str) -> None:
    engine, client, other = FakeEngine(core), FakeClient(core, "api-0"), FakeClient(core, "api-1")
    for member in (engine, client, other):
        member.hello()
    client.submit("r1")
    commands = _lose_client(core, engine, client, other, sign)
    told = [m for m in core.sent_to(engine.identity, commands) if isinstance(m, Clients)]
    assert [address.client_index for address in told[0].clients] == [other.index]
    (snapshot,) = core.published(core.end_turn()) or core.published(commands)
    assert [engine.requests for engine in snapshot.engines] == [0]  # type: ignore[attr-defined]


def _lose_client(core: Core, engine: FakeEngine, client: FakeClient, other: FakeClient, sign: str) -> list[Command]:
    match sign:
        case "unreachable":
            core.handle(Unreachable(Link.CLIENTS, client.identity, "gone"))
        case "exited":
            other.exited(client.name, client.pid)
        case "restarted":
            FakeClient(core, client.name, "a2").hello()
        case "silent":
            core.wait(TIMEOUT_S - 0.5)
            other.say(Heartbeat())
            engine.report()
            return core.wait(1.0)
    return core.commands


def test_a_process_that_exited_is_not_mistaken_for_its_successor(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core, incarnation="e2")
    client.hello()
    engine.hello()
    client.exited(engine.name, engine.pid + 1)
    assert core.commands == []
    assert isinstance(client.submit("r1"), Accepted)


def test_how_a_process_ended_is_told_also_when_it_was_given_up_before(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    engine.hello()
    engine.unreachable()
    (lost,) = (each for each in core.sent_to(client.identity) if isinstance(each, EngineLost))
    assert not lost.by_fault, "nobody knows yet"
    client.exited(engine.name, engine.pid, by_fault=True)
    (again,) = core.sent_to(client.identity)
    assert isinstance(again, EngineLost)
    assert (again.incarnation, again.engine_index, again.by_fault) == (engine.incarnation, lost.engine_index, True)
    client.exited(engine.name, engine.pid, by_fault=True)
    assert core.sent_to(client.identity) == []
    engine.report()
    assert core.drops() == ["engines: LoadReport before Hello"], "its process is gone"


def test_an_engine_core_that_died_by_itself_is_lost_by_its_own_fault(core: Core) -> None:
    client, engine = FakeClient(core), FakeEngine(core)
    client.hello()
    engine.hello()
    client.exited(engine.name, engine.pid, by_fault=True)
    (lost,) = core.sent_to(client.identity)
    assert isinstance(lost, EngineLost) and lost.by_fault


def test_the_older_of_two_processes_of_one_name_is_told_to_end(core: Core) -> None:
    old, new = FakeEngine(core, incarnation="e1"), FakeEngine(core, incarnation="e2")
    old.hello()
    new.hello()
    assert [type(message) for message in core.sent_to(old.identity)] == [Refused]
    old.report()
    assert core.drops() == ["engines: LoadReport before Hello"]


def test_the_older_of_two_api_servers_of_one_name_is_told_to_end(core: Core) -> None:
    old, new = FakeClient(core, incarnation="a1"), FakeClient(core, incarnation="a2")
    old.hello()
    new.hello()
    assert [type(message) for message in core.sent_to(old.identity)] == [Refused]


@pytest.mark.parametrize("kind", [FakeEngine, FakeClient])
def test_a_silent_process_does_not_come_back_after_its_successor(
    core: Core, kind: type[FakeEngine | FakeClient]
) -> None:
    old, new = kind(core, incarnation="1"), kind(core, incarnation="2")
    old.hello()
    old.unreachable()
    new.hello()
    old.say(LoadReport(Load()) if isinstance(old, FakeEngine) else Heartbeat())  # type: ignore[arg-type]
    assert core.drops() and not core.sent_to(new.identity)


def test_a_silent_engine_core_that_is_heard_again_is_taken_back_without_its_requests(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.submit("r1")
    core.wait(TIMEOUT_S - 0.5)
    client.say(Heartbeat())
    core.wait(1.0)
    assert isinstance(client.submit("r2"), Rejected)
    answer = engine.say(LoadReport(Load(running=1), adds_received=1))
    assert [type(message) for message in answer] == [EngineWelcome, Clients, Abort]
    assert answer[2] == Abort([key("r1")])
    assert isinstance(client.submit("r3"), Accepted)


def test_a_silent_api_server_that_is_heard_again_learns_that_its_requests_are_lost(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.submit("runs")
    client.submit("ends meanwhile")
    index = client.index
    core.wait(TIMEOUT_S - 0.5)
    engine.report(finished=[key("ends meanwhile")])
    core.wait(1.0)
    assert core.state.next_deadline_s() < core.now_s + TIMEOUT_S, "only the engine core is left"
    welcome, heartbeat = client.say(Heartbeat())
    assert isinstance(welcome, ClientWelcome) and heartbeat == Heartbeat()
    assert welcome.client_index != index, "all that it had is lost: no engine core has anything under this index"
    (told,) = [m for m in core.sent_to(engine.identity) if isinstance(m, Clients)]
    assert told.clients == [ClientAddress(welcome.client_index, "ipc:///run/api-0")]
    client.index = welcome.client_index
    assert isinstance(client.submit("runs", attempt=1), Accepted)


def test_what_an_api_server_sent_before_it_knew_its_new_index_comes_again(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.unreachable()
    assert client.submit("r1") is None
    (welcome,) = core.sent_to(client.identity)
    assert isinstance(welcome, ClientWelcome)
    assert client.submit("r2") is None and not core.drops(), "it has not read the Welcome yet"
    client.index = welcome.client_index
    assert isinstance(client.submit("r1"), Accepted)
    client.index = ClientIndex(1)
    client.submit("r3")
    assert core.drops() == ["clients: a request under another's client index"]


def test_an_api_server_on_a_new_connection_learns_of_an_engine_core_that_was_given_up_meanwhile(core: Core) -> None:
    """The EngineLost of then may have gone with the old connection, and the engine core is there again."""
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.submit("r1")
    engine.unreachable()
    engine.report()
    answer = client.hello(EngineRun(EngineIndex(0), engine.incarnation))
    assert [type(message) for message in answer] == [ClientWelcome, EngineLost]


def test_the_heartbeat_of_an_api_server_is_answered(core: Core) -> None:
    client = FakeClient(core)
    client.hello()
    assert client.say(Heartbeat()) == [Heartbeat()]


def test_nobody_is_given_up_when_the_coordinator_itself_was_stopped(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    core.end_turn()
    core.now_s += 60.0
    core.end_turn()
    assert not core.sent_to(client.identity)
    assert isinstance(client.submit("r1"), Accepted)


def test_nobody_is_given_up_while_messages_are_left_in_the_sockets(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    core.now_s += TIMEOUT_S + 0.1
    core.handle(TurnEnded(drained=False))
    assert not core.sent_to(client.identity)
    core.handle(TurnEnded(drained=True))
    assert any(isinstance(command, Note) and "not heard from" in command.text for command in core.commands)


def test_a_member_that_sends_rubbish_now_and_then_stays(core: Core) -> None:
    engine = FakeEngine(core)
    engine.hello()
    for _ in range(5):
        for _ in range(liveness.MAX_GARBAGE_IN_A_ROW - 1):
            core.handle(Garbage(Link.ENGINES, engine.identity, "rubbish"))
        engine.report()
    assert not core.drops()


def test_a_member_that_sends_nothing_but_rubbish_is_dropped(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    for _ in range(liveness.MAX_GARBAGE_IN_A_ROW):
        core.handle(Garbage(Link.ENGINES, engine.identity, "rubbish"))
    assert [type(message) for message in core.sent_to(client.identity)] == [EngineLost]


def test_an_engine_core_on_a_new_connection_keeps_its_requests_and_gets_lost_ones_again(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    for request_id in ("done", "runs", "aborted", "lost"):
        client.submit(request_id)
    engine.report(adds_received=3)
    client.abort(key("aborted"))
    answer = engine.hello((key("runs"), client.index, 10), (key("aborted"), client.index, 10))
    welcome, told, aborted, again = answer
    assert isinstance(welcome, EngineWelcome) and isinstance(told, Clients)
    assert aborted == Abort([key("aborted")])
    assert isinstance(again, EngineCoreRequest) and again.request_id == "lost"
    assert not core.sent_to(client.identity), "no stream noticed"
    assert _requests(core) == [2]
    engine.report(adds_received=1, finished=[key("runs"), key("lost")])
    assert _requests(core) == [0]


def test_counting_starts_anew_on_a_new_connection(core: Core) -> None:
    first, second, client = FakeEngine(core, "engine-0"), FakeEngine(core, "engine-1"), FakeClient(core)
    for member in (first, second, client):
        member.hello()
    for request_id in ("a", "b"):
        client.submit(request_id)
    first.report(adds_received=1, finished=[key("a")])
    second.report(adds_received=1, finished=[key("b")])
    client.submit("c", tokens=1000)  # to the first
    first.report(Load(queued_prefill_tokens=5000), adds_received=2, finished=[key("c")])
    first.hello()  # with nothing left to do
    client.submit("d")
    client.submit("e", tokens=1000)
    assert _requests(core) == [1, 1], "its old load is forgotten"
    first.report(adds_received=1, finished=[key("e"), key("d")])
    second.report(adds_received=2, finished=[key("e"), key("d")])
    for request_id in ("f", "g", "h", "i"):
        client.submit(request_id)
    assert _requests(core) == [2, 2], "what it has confirmed is forgotten"


def _requests(core: Core) -> list[int]:
    core.handle(Subscribed())
    (snapshot,) = core.published(core.end_turn())
    return [engine.requests for engine in snapshot.engines]  # type: ignore[attr-defined]


def test_an_api_server_on_a_new_connection_keeps_its_requests_and_learns_of_losses(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.submit("r1")
    gone = EngineRun(EngineIndex(5), Incarnation("gone"))
    answer = client.hello(EngineRun(EngineIndex(0), engine.incarnation), gone)
    assert [type(message) for message in answer] == [ClientWelcome, EngineLost]
    assert answer[1].incarnation == "gone"  # type: ignore[attr-defined]
    assert _requests(core) == [1]


def test_lost_members_are_remembered_up_to_a_limit(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_LOST", 2)
    monkeypatch.setattr(clients, "MAX_LOST", 2)
    for number in range(5):
        FakeEngine(core, f"engine-{number}").hello()
        FakeClient(core, f"api-{number}").hello()
    core.wait(2 * TIMEOUT_S)
    FakeEngine(core, "engine-0").report()
    assert core.drops()
    FakeEngine(core, "engine-4").report()
    assert not core.drops()
    assert FakeClient(core, "api-4").say(Heartbeat())


def test_names_keep_their_index_up_to_a_limit(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_NAMES", 3)
    for number in range(10):
        engine = FakeEngine(core, f"engine-{number}")
        engine.hello()
        engine.unreachable()
    FakeEngine(core, "engine-9").hello()


def test_joins_and_losses_are_noted_for_the_log(core: Core) -> None:
    engine = FakeEngine(core)
    engine.hello()
    assert any(isinstance(command, Note) and "engine-0" in command.text for command in core.commands)
    engine.unreachable()
    assert any(isinstance(command, Note) and "lost" in command.text for command in core.commands)


def test_no_engine_core_left_means_no_engine_not_unknown_model(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    engine.unreachable()
    rejected = client.submit("r1")
    assert isinstance(rejected, Rejected) and rejected.reason is RejectReason.NO_ENGINE
    assert rejected.retry_after_s > 0
    assert client.index == ClientIndex(FIRST_CLIENT_INDEX)


def test_engine_cores_are_told_with_which_key_an_api_server_receives(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    address = "tcp://10.0.0.1:7710"
    client.say(ClientHello(PROTOCOL_VERSION, client.name, client.incarnation, address, 1, output_public_key="key"))
    (told,) = [message for message in core.sent_to(engine.identity) if isinstance(message, Clients)]
    assert [(each.address, each.public_key) for each in told.clients] == [(address, "key")]
