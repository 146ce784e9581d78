"""A coordinator's core with invariants checked after every event, and members to talk to it."""

from collections.abc import Iterable

import msgspec

from coordinator.admission import AdmissionLimits
from coordinator.cluster import ClusterState
from coordinator.events import (
    Command,
    Drop,
    Event,
    Forward,
    FromClient,
    FromEngine,
    Identity,
    Link,
    Publish,
    Send,
    Subscribed,
    TurnEnded,
    Unreachable,
)
from coordinator.parts import Settings
from protocol.codec import AT_COORDINATOR_FROM_CLIENT, AT_COORDINATOR_FROM_ENGINE, Frame, encode, pack_token_ids
from protocol.identifiers import ClientIndex, Incarnation, RequestId, member_identity
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    BlocksChanged,
    Card,
    ClientHello,
    ClientToCoordinator,
    ClientWelcome,
    ClusterSnapshot,
    EngineCoreRequest,
    EngineHello,
    EngineRun,
    EngineState,
    EngineToCoordinator,
    Heartbeat,
    Load,
    LoadReport,
    Message,
    ModelInfo,
    ProcessExited,
    Rejected,
    RequestKey,
)
from protocol.sampling import SamplingParams
from protocol.tenants import TenantTable

TIMEOUT_S = 3.0
MODEL = "small"
FIRST_CLIENT_INDEX = ClientIndex(7000)


def key(request_id: str, attempt: int = 0) -> RequestKey:
    return RequestKey(RequestId(request_id), attempt)


class Core:
    """Drives a ClusterState; `commands` are those of the last event."""

    def __init__(
        self,
        max_requests: int = 100,
        settled: bool = True,
        incarnation: str = "c1",
        limits: AdmissionLimits | None = None,
        tenants: dict[str, TenantTable] | None = None,
    ) -> None:
        self.now_s = 100.0
        limits = limits or AdmissionLimits(max_requests=max_requests)
        settings = Settings(Incarnation(incarnation), FIRST_CLIENT_INDEX, limits, TIMEOUT_S, tenants or {})
        self.state = ClusterState(settings, self.now_s)
        self.commands: list[Command] = []
        if settled:
            self.wait(TIMEOUT_S)

    def handle(self, event: Event) -> list[Command]:
        self.commands = self.state.handle(event, self.now_s)
        self.state.check_invariants()
        return self.commands

    def end_turn(self) -> list[Command]:
        return self.handle(TurnEnded(drained=True))

    def wait(self, seconds: float) -> list[Command]:
        """Lets time pass with a turn at each deadline, as the loop does; returns all that was commanded."""
        until_s = self.now_s + seconds
        commands = self.end_turn()
        while self.state.next_deadline_s() <= until_s:
            self.now_s = max(self.now_s, self.state.next_deadline_s())
            commands += self.end_turn()
        self.now_s = until_s
        return commands + self.end_turn()

    def sent_to(self, identity: Identity, commands: list[Command] | None = None) -> list[Message]:
        """The messages for a member among the last commands; a forwarded request is decoded."""
        messages: list[Message] = []
        for command in self.commands if commands is None else commands:
            match command:
                case Send(_, to, message) if to == identity:
                    messages.append(message)
                case Forward(Link.ENGINES, to, frames) if to == identity:
                    messages.append(msgspec.msgpack.decode(frames[1], type=EngineCoreRequest))
        return messages

    def published(self, commands: list[Command] | None = None) -> list[Message]:
        return [c.message for c in (self.commands if commands is None else commands) if isinstance(c, Publish)]

    def state_of(self, engine: "FakeEngine") -> EngineState:
        """What is published of an engine core."""
        self.handle(Subscribed())
        (snapshot,) = self.published(self.end_turn())
        assert isinstance(snapshot, ClusterSnapshot)
        (state,) = [each for each in snapshot.engines if each.incarnation == engine.incarnation]
        return state

    def drops(self) -> list[str]:
        return [command.reason for command in self.commands if isinstance(command, Drop)]


class FakeEngine:
    """An engine core as the coordinator sees it."""

    def __init__(self, core: Core, name: str = "engine-0", incarnation: str = "e1", model: str = MODEL) -> None:
        self.core = core
        self.name = name
        self.incarnation = Incarnation(incarnation)
        self.model = ModelInfo(model, f"hash-of-{model}", 2048)
        self.pid = 4000
        self.adds_received = 0

    @property
    def identity(self) -> Identity:
        return Identity(member_identity(self.name, self.incarnation))

    def say(self, message: EngineToCoordinator, *buffers: Frame) -> list[Message]:
        """Sends a message; returns what came back to this engine core."""
        self.core.handle(FromEngine(self.identity, AT_COORDINATOR_FROM_ENGINE.decode(encode(message, *buffers))))
        return self.core.sent_to(self.identity)

    def hello(
        self,
        *requests: tuple[RequestKey, ClientIndex, int],
        version: int = PROTOCOL_VERSION,
        clients: Iterable[int] = (),
        greeting: int = 0,
        started_s: float = 0.0,
    ) -> list[Message]:
        """`clients` besides those of the requests."""
        kept = sorted({ClientIndex(index) for index in clients} | {client for _, client, _ in requests})
        hello = EngineHello(
            version,
            self.name,
            self.incarnation,
            self.pid,
            self.model,
            requests=list(requests),
            clients=kept,
            greeting=greeting,
            started_s=started_s,
        )
        return self.say(hello)

    def report(
        self, load: Load | None = None, adds_received: int = 0, finished: list[RequestKey] | None = None
    ) -> None:
        self.say(LoadReport(load or Load(), adds_received, finished or []))

    def blocks(self, sequence: int, stored: bytes = b"", evicted: bytes = b"", anew: bool = False) -> list[Message]:
        """Tells of blocks; returns what came back."""
        return self.say(BlocksChanged(sequence, anew), stored, evicted)

    def card(self) -> None:
        self.say(Card(self.model.card_hash), b"packed card")

    def unreachable(self) -> None:
        self.core.handle(Unreachable(Link.ENGINES, self.identity, "gone"))


class FakeClient:
    """An API server as the coordinator sees it."""

    def __init__(self, core: Core, name: str = "api-0", incarnation: str = "a1") -> None:
        self.core = core
        self.name = name
        self.incarnation = Incarnation(incarnation)
        self.pid = 5000
        self.index = ClientIndex(-1)

    @property
    def identity(self) -> Identity:
        return Identity(member_identity(self.name, self.incarnation))

    def say(self, message: ClientToCoordinator, *buffers: Frame) -> list[Message]:
        """Sends a message; returns what came back to this API server."""
        self.core.handle(FromClient(self.identity, AT_COORDINATOR_FROM_CLIENT.decode(encode(message, *buffers))))
        return self.core.sent_to(self.identity)

    def hello(
        self,
        *engines: EngineRun,
        index: int | None = None,
        version: int = PROTOCOL_VERSION,
        requests: Iterable[tuple[RequestKey, Incarnation]] = (),
        greeting: int = 0,
        started_s: float = 0.0,
    ) -> list[Message]:
        claimed = self.index if index is None else ClientIndex(index)
        address = f"ipc:///run/{self.name}"
        hello = ClientHello(
            version,
            self.name,
            self.incarnation,
            address,
            self.pid,
            claimed,
            list(engines),
            list(requests),
            greeting=greeting,
            started_s=started_s,
        )
        answer = self.say(hello)
        for message in answer:
            if isinstance(message, ClientWelcome):
                self.index = message.client_index
        return answer

    def request(
        self, request_id: str, tokens: int = 10, attempt: int = 0, model: str = MODEL, deaths: int = 0
    ) -> EngineCoreRequest:
        sampling = SamplingParams(max_tokens=8)
        return EngineCoreRequest(
            RequestId(request_id), self.index, attempt, model, tokens, sampling, 0.0, deaths=deaths
        )

    def submit(
        self, request_id: str, tokens: int = 10, attempt: int = 0, model: str = MODEL, deaths: int = 0
    ) -> Accepted | Rejected | None:
        """Submits; returns the answer, None while it waits."""
        self.say(self.request(request_id, tokens, attempt, model, deaths), pack_token_ids(range(tokens)))
        answers = [m for m in self.core.sent_to(self.identity) if isinstance(m, Accepted | Rejected)]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def heartbeat(self) -> None:
        self.say(Heartbeat())

    def abort(self, *keys: RequestKey) -> None:
        self.say(Abort(list(keys)))

    def unreachable(self) -> None:
        self.core.handle(Unreachable(Link.CLIENTS, self.identity, "gone"))

    def exited(self, name: str, pid: int, by_fault: bool = False) -> None:
        """What the supervisor says; over this API server's connection, for want of another."""
        frames = encode(ProcessExited(name, pid, by_fault))
        self.core.handle(FromClient(Identity(b"supervisor"), AT_COORDINATOR_FROM_CLIENT.decode(frames)))
