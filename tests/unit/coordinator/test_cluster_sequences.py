"""Random sequences of joins, deaths, submissions, reports, aborts and returns against the core's promises.

The model on the other side keeps for each API server what it has submitted and what it was told, and for each engine
core what it was sent. The promises, checked after every step:
- each submission is answered once, with Accepted or Rejected (at the latest when the settling time is over, but for
  newer attempts, which wait for an engine core);
- each accepted request whose end its API server has not seen is at its engine core, or its outputs are still on
  their way, or the API server was told that it is lost (EngineLost, or another client index);
- no engine core is sent a request of an API server that its last Clients did not name;
- the core's own invariants hold (Core checks them).
"""

from core_fixture import TIMEOUT_S, Core, FakeClient, FakeEngine, key
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from coordinator.events import Command, Forward, Identity, Link, Send, Subscribed, Unreachable
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import (
    Abort,
    Accepted,
    Clients,
    ClientWelcome,
    ClusterSnapshot,
    EngineLost,
    EngineRun,
    EngineWelcome,
    GetCard,
    Heartbeat,
    Load,
    Refused,
    Rejected,
    RequestKey,
)

Run = tuple[str, str]


class EngineModel(FakeEngine):
    """An engine core that does what the protocol says."""

    def __init__(self, core: Core, name: str, incarnation: str, model: str) -> None:
        super().__init__(core, name, incarnation, model)
        self.requests: dict[RequestKey, int] = {}
        self.clients: set[int] = set()
        self.unread: dict[RequestKey, int] = {}
        """Last outputs in the queue to an API server, by its index."""
        self.ended: list[RequestKey] = []
        self.alive = True

    def take(self, command: Send | Forward) -> None:
        if isinstance(command, Forward):
            (request,) = self.core.sent_to(self.identity, [command])
            assert request.client_index in self.clients, "a request of an API server it was not told of"  # type: ignore[attr-defined]
            self.adds_received += 1
            self.requests = {k: c for k, c in self.requests.items() if k.request_id != request.request_id}  # type: ignore[attr-defined]
            self.requests[request.key] = request.client_index  # type: ignore[attr-defined]
            return
        match command.message:
            case EngineWelcome():
                self.adds_received = 0
            case Abort(keys):
                for each in keys:
                    self.requests.pop(each, None)
            case Clients(addresses):
                self.clients = {address.client_index for address in addresses}
                self.requests = {k: c for k, c in self.requests.items() if c in self.clients}
                self.unread = {k: c for k, c in self.unread.items() if c in self.clients}
            case Refused():
                self.alive = False


class ClientModel(FakeClient):
    """An API server that does what the protocol says."""

    def __init__(self, core: Core, name: str, incarnation: str) -> None:
        super().__init__(core, name, incarnation)
        self.unanswered: dict[RequestKey, None] = {}
        self.running: dict[RequestKey, Run] = {}
        self.must_send_again = False
        self.alive = True

    def take(self, command: Send) -> None:
        match command.message:
            case ClientWelcome(client_index=index):
                if index != self.index:
                    self.running.clear()
                self.index = index
                self.must_send_again = bool(self.unanswered)
            case Accepted(accepted, index, incarnation):
                if accepted not in self.running:  # sent again, answered again
                    assert accepted in self.unanswered, "answered twice"
                    del self.unanswered[accepted]
                    self.running[accepted] = (str(index), incarnation)
            case Rejected(rejected):
                assert rejected in self.unanswered, "answered twice"
                del self.unanswered[rejected]
            case EngineLost(index, incarnation):
                lost = (str(index), incarnation)
                self.running = {each: run for each, run in self.running.items() if run != lost}
            case Refused():
                self.alive = False


class ClusterSequences(RuleBasedStateMachine):
    clients = Bundle("clients")
    engines = Bundle("engines")

    @initialize(settled=st.booleans())
    def start(self, settled: bool) -> None:
        self.core = Core(max_requests=6, settled=settled)
        self.by_identity: dict[Identity, EngineModel | ClientModel] = {}
        self.started_s = self.core.now_s - (TIMEOUT_S if settled else 0.0)
        self.runs = 0
        self.ids = 0

    # --- members ---

    @rule(target=engines, name=st.sampled_from(["e0", "e1", "e2"]), model=st.sampled_from(["small", "other"]))
    def engine_joins(self, name: str, model: str) -> EngineModel:
        self.runs += 1
        engine = EngineModel(self.core, name, f"run{self.runs}", model)
        self.by_identity[engine.identity] = engine
        engine.hello()
        self.deliver(self.core.commands)
        return engine

    @rule(target=clients, name=st.sampled_from(["a0", "a1"]))
    def client_joins(self, name: str) -> ClientModel:
        self.runs += 1
        client = ClientModel(self.core, name, f"run{self.runs}")
        self.by_identity[client.identity] = client
        client.hello()
        self.deliver(self.core.commands)
        return client

    @rule(engine=engines, exited=st.booleans())
    def engine_dies(self, engine: EngineModel, exited: bool) -> None:
        if engine.alive:
            engine.alive = False
            if exited:
                FakeClient(self.core).exited(engine.name, engine.pid)
            else:
                engine.unreachable()
            self.deliver(self.core.commands)

    @rule(engine=engines)
    def engine_stops_reading(self, engine: EngineModel) -> None:
        if engine.alive:
            engine.unreachable()
            self.deliver(self.core.commands)

    @rule(client=clients, alive=st.booleans())
    def client_dies_or_stops_reading(self, client: ClientModel, alive: bool) -> None:
        if client.alive:
            client.alive = alive
            self.core.handle(Unreachable(Link.CLIENTS, client.identity, "gone"))
            self.deliver(self.core.commands)

    @rule(client=clients, engine=engines)
    def client_is_stopped_while_a_request_ends(self, client: ClientModel, engine: EngineModel) -> None:
        """Its end is in the queue when the engine core is told to cut the stream; then it is heard again."""
        if client.alive:
            self.request_ends(engine, 0)
            self.client_dies_or_stops_reading(client, alive=True)
            self.heartbeat(client)

    @rule(engine=engines)
    def engine_connects_again(self, engine: EngineModel) -> None:
        if engine.alive:
            engine.hello(*((each, ClientIndex(c), 1) for each, c in engine.requests.items()), clients=engine.clients)
            self.deliver(self.core.commands)

    @rule(client=clients)
    def client_connects_again(self, client: ClientModel) -> None:
        if client.alive:
            before = client.index
            client.hello(
                *(EngineRun(EngineIndex(int(index)), Incarnation(run)) for index, run in set(client.running.values()))
            )
            if client.index != before:  # as in `take`, but the fixture has noted the new index by then
                client.running.clear()
            self.deliver(self.core.commands)

    # --- requests ---

    @rule(client=clients, model=st.sampled_from(["small", "small", "other"]), tokens=st.integers(1, 500))
    def submit(self, client: ClientModel, model: str, tokens: int) -> None:
        if client.alive:
            self.ids += 1
            client.unanswered[key(f"r{self.ids}")] = None
            client.submit(f"r{self.ids}", tokens, model=model)
            self.deliver(self.core.commands)

    @rule(client=clients, choice=st.integers(0, 20))
    def submit_again(self, client: ClientModel, choice: int) -> None:
        known = [*client.unanswered, *client.running]
        if client.alive and known:
            again = known[choice % len(known)]
            client.submit(again.request_id, 10, again.attempt)
            self.deliver(self.core.commands)

    @rule(client=clients, choice=st.integers(0, 20))
    def submit_newer_attempt(self, client: ClientModel, choice: int) -> None:
        if client.alive and client.running:
            old = list(client.running)[choice % len(client.running)]
            del client.running[old]
            client.unanswered[key(old.request_id, old.attempt + 1)] = None
            client.submit(old.request_id, 10, old.attempt + 1)
            self.deliver(self.core.commands)

    @rule(client=clients, choice=st.integers(0, 20))
    def abort(self, client: ClientModel, choice: int) -> None:
        known = [*client.unanswered, *client.running]
        if client.alive and known:
            unwanted = known[choice % len(known)]
            client.unanswered.pop(unwanted, None)
            client.running.pop(unwanted, None)
            client.abort(unwanted)
            self.deliver(self.core.commands)

    @rule(engine=engines, choice=st.integers(0, 20))
    def request_ends(self, engine: EngineModel, choice: int) -> None:
        if engine.alive and engine.requests:
            ended = list(engine.requests)[choice % len(engine.requests)]
            engine.unread[ended] = engine.requests.pop(ended)
            engine.ended.append(ended)

    @rule(engine=engines, client=clients)
    def outputs_are_read(self, engine: EngineModel, client: ClientModel) -> None:
        """They come past the coordinator."""
        for ended in [each for each, index in engine.unread.items() if index == client.index and client.alive]:
            del engine.unread[ended]
            client.running.pop(ended, None)
            client.unanswered.pop(ended, None)

    @rule(engine=engines, draining=st.booleans(), queued=st.integers(0, 1000))
    def engine_reports(self, engine: EngineModel, draining: bool, queued: int) -> None:
        if engine.alive:
            ended, engine.ended = engine.ended, []
            engine.report(Load(queued_prefill_tokens=queued, draining=draining), engine.adds_received, ended)
            self.deliver(self.core.commands)

    @rule(engine=engines)
    def engine_sends_card(self, engine: EngineModel) -> None:
        if engine.alive:
            engine.card()
            self.deliver(self.core.commands)

    @rule(client=clients)
    def client_asks_for_card(self, client: ClientModel) -> None:
        if client.alive:
            client.say(GetCard("hash-of-small"))
            self.deliver(self.core.commands)

    @rule(client=clients)
    def heartbeat(self, client: ClientModel) -> None:
        if client.alive:
            client.say(Heartbeat())
            self.deliver(self.core.commands)

    @rule(seconds=st.sampled_from([0.1, 1.0, TIMEOUT_S, 2 * TIMEOUT_S]))
    def time_passes(self, seconds: float) -> None:
        self.deliver(self.core.wait(seconds))

    # --- the promises ---

    def deliver(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Send | Forward):
                member = self.by_identity.get(command.identity)
                if isinstance(member, EngineModel):
                    member.take(command)
                elif isinstance(member, ClientModel):
                    assert isinstance(command, Send)
                    member.take(command)
        for member in self.by_identity.values():
            if isinstance(member, ClientModel) and member.must_send_again:
                member.must_send_again = False
                for unanswered in list(member.unanswered):
                    member.submit(unanswered.request_id, 10, unanswered.attempt)
                    self.deliver(self.core.commands)

    @invariant()
    def every_accepted_request_is_at_its_engine_core(self) -> None:
        snapshot = self.snapshot()
        engines = {e.incarnation: e for e in self.by_identity.values() if isinstance(e, EngineModel)}
        for client in self.live_clients(snapshot):
            for running, (_, incarnation) in client.running.items():
                engine = engines[Incarnation(incarnation)]
                there = running in engine.requests or engine.unread.get(running) == client.index
                assert there, f"{running} is nowhere, nobody was told"

    @invariant()
    def every_submission_is_answered_when_the_coordinator_has_settled(self) -> None:
        if self.core.now_s >= self.started_s + TIMEOUT_S:
            for client in self.live_clients(self.snapshot()):
                assert all(each.attempt for each in client.unanswered), "only what has lost its engine core waits"

    def teardown(self) -> None:
        """When all is over nothing is left in flight."""
        members = [member for member in self.by_identity.values() if member.alive]
        for _ in range(5):
            for member in members:
                self.settle_accounts(member)
            self.deliver(self.core.wait(1.0))
        assert [engine.requests for engine in self.snapshot().engines if engine.requests] == []

    def settle_accounts(self, member: EngineModel | ClientModel) -> None:
        if isinstance(member, EngineModel):
            self.engine_reports(member, draining=False, queued=0)
        else:
            keys = [*member.unanswered, *member.running]
            member.unanswered.clear()
            member.running.clear()
            member.abort(*keys)
            self.deliver(self.core.commands)

    def snapshot(self) -> ClusterSnapshot:
        self.core.handle(Subscribed())
        commands = self.core.end_turn()
        self.deliver(commands)
        (snapshot,) = self.core.published(commands)
        assert isinstance(snapshot, ClusterSnapshot)
        return snapshot

    def live_clients(self, snapshot: ClusterSnapshot) -> list[ClientModel]:
        newest = {
            client.name: client
            for client in self.by_identity.values()
            if isinstance(client, ClientModel) and client.alive  # not one that an older process has displaced again
        }
        return [newest[name] for name in snapshot.api_servers]


TestClusterSequences = ClusterSequences.TestCase
TestClusterSequences.settings = settings(max_examples=100, stateful_step_count=40)
