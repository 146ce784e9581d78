"""The pure cores of all three roles as simulated processes, with the least of a shell around each.

API server and coordinator are the real cores; the engine core is its real link to the coordinator and its real output
streams around a stand-in for scheduler and device, which draws the token of a position from request and position.
"""

from collections.abc import Callable

from simulated_network import Channel, Process, World

from api_server.client_core import ClientCore
from api_server.client_events import (
    Admit,
    ClientEvent,
    Deliver,
    Fail,
    Forget,
    Leave,
    LinkDown,
    LinkUp,
    NotSent,
    Refuse,
    Resumed,
    SecondPassed,
    Send,
    Submit,
)
from coordinator.admission import AdmissionLimits
from coordinator.cluster import ClusterState
from coordinator.events import Event, Forward, FromClient, FromEngine, Identity, Link, TurnEnded, Unreachable
from coordinator.events import Send as CoordinatorSend
from coordinator.parts import Settings
from engine_core.coordinator_link import CoordinatorLink, EngineIdentity, LinkEvent, SendFailed, TellCore, TellOutputs
from engine_core.coordinator_link import Send as EngineSend
from engine_core.events import (
    ClientsChanged,
    ClientStuck,
    CoordinatorRefused,
    CoordinatorWelcomed,
    CoreEvent,
    CoreStatus,
    Joined,
    RequestArrived,
    RequestInvalid,
    RequestsAborted,
)
from engine_core.output_streams import OutputStreams
from protocol.codec import (
    AT_CLIENT,
    AT_COORDINATOR_FROM_CLIENT,
    AT_COORDINATOR_FROM_ENGINE,
    AT_ENGINE,
    AT_OUTPUTS,
    Frame,
    encode,
    pack_token_ids,
)
from protocol.identifiers import ClientIndex, Incarnation, RequestId, member_identity
from protocol.messages import (
    PROTOCOL_VERSION,
    ClientAddress,
    ClientHello,
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    Load,
    ModelInfo,
    ProcessExited,
    RequestKey,
)
from protocol.sampling import SamplingParams
from protocol.sockets import ConnectionEvent

MODEL = ModelInfo("m", "card", 1_000)
SETTLING_S = 3.0
STEP_S = 0.05
ADMISSION_TIMEOUT_S = 30.0
RESUME_TIMEOUT_S = 60.0
VOCABULARY = 2**31


def token_at(request_id: RequestId, position: int) -> int:
    """What every engine core draws there."""
    return int(request_id) * 1_000 + position


class CoordinatorProcess(Process):
    def __init__(self, world: World, number: int) -> None:
        super().__init__(world)
        self.connections: dict[Identity, Channel] = {}
        settings = Settings(
            Incarnation(f"c{number}"), ClientIndex(number * 1_000), AdmissionLimits(max_requests=100), SETTLING_S
        )
        self.state = ClusterState(settings, world.now_s)
        self._wake_s = 0.0
        self._turn()

    def take(self, event: Event) -> None:
        self.handle(lambda: self._take(event))

    def _take(self, event: Event) -> None:
        unreachable = self._execute(event)
        while unreachable:
            unreachable += self._execute(unreachable.pop(0))
        self._turn()

    def _execute(self, event: Event) -> list[Unreachable]:
        lost = []
        for command in self.state.handle(event, self.world.now_s):
            if isinstance(command, CoordinatorSend | Forward):
                channel = self.connections.get(command.identity)
                if channel is None:
                    lost.append(Unreachable(command.link, command.identity, "gone"))
                elif isinstance(command, Forward):
                    channel.send(list(command.frames))  # type: ignore[arg-type]
                else:
                    channel.send(encode(command.message, *command.buffers))  # type: ignore[arg-type]
        self.state.check_invariants()
        return lost

    def _turn(self) -> None:
        unreachable = self._execute(TurnEnded(drained=not self.has_backlog))
        while unreachable:
            unreachable += self._execute(unreachable.pop(0))
        deadline_s = self.state.next_deadline_s()
        if deadline_s < float("inf") and deadline_s != self._wake_s:
            self._wake_s = deadline_s
            self.world.at(deadline_s, lambda: self.handle(self._turn))


class Coordinators:
    """Where members find the coordinator that there is, if any."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0
        self._unsent_exits: list[ProcessExited] = []
        self.present: CoordinatorProcess | None = None
        self.start()

    def start(self) -> None:
        self._count += 1
        self.present = CoordinatorProcess(self._world, self._count)
        for exited in self._unsent_exits:
            self.tell_exited(exited)
        self._unsent_exits.clear()

    def kill(self) -> None:
        if self.present is not None:
            self.present.is_alive = False
            self.present = None

    def tell_exited(self, exited: ProcessExited) -> None:
        """The supervisor's word."""
        if self.present is None:
            self._unsent_exits.append(exited)
        else:
            received = AT_COORDINATOR_FROM_CLIENT.decode(encode(exited))
            self.present.take(FromClient(Identity(b"supervisor"), received))


class Connection:
    """A member's connection to the coordinator: made anew whenever it is gone."""

    def __init__(
        self,
        member: Process,
        coordinators: Coordinators,
        link: Link,
        identity: Identity,
        receive: Callable[[list[bytes]], None],
        changed: Callable[[ConnectionEvent], None],
    ) -> None:
        self._member = member
        self._world = member.world
        self._coordinators = coordinators
        self._link = link
        self._identity = identity
        self._receive = receive
        self._changed = changed
        self._peer: CoordinatorProcess | None = None
        self._up: Channel | None = None
        self._down: Channel | None = None
        self.believed_up = False
        self._world.after(0.0, self._look)

    def send(self, frames: list[Frame]) -> bool:
        if self._up is None:
            return False
        self._up.send(frames)  # type: ignore[arg-type]
        return True

    def cut(self) -> None:
        """Both directions lose what is under way from some point on."""
        if self._peer is None:
            return
        for channel in (self._up, self._down):
            assert channel is not None
            channel.cut()
        if self._peer.connections.get(self._identity) is self._down:
            del self._peer.connections[self._identity]
        self._peer = self._up = self._down = None
        self._world.after(self._world.delay_s(), self._tell_down)

    def _tell_down(self) -> None:
        self._member.handle(self.notice_down)

    def notice_down(self) -> None:
        if self._up is None and self.believed_up:
            self.believed_up = False
            self._changed(ConnectionEvent.DOWN)

    def _look(self) -> None:
        if not self._member.is_alive:
            self.cut()
            return
        present = self._coordinators.present
        if self._peer is not None and self._peer is not present:
            self.cut()
        elif self._peer is None and present is not None and not self.believed_up:
            self._connect(present)
        self._world.after(0.05, self._look)

    def _connect(self, peer: CoordinatorProcess) -> None:
        door = AT_COORDINATOR_FROM_CLIENT if self._link is Link.CLIENTS else AT_COORDINATOR_FROM_ENGINE
        event = FromClient if self._link is Link.CLIENTS else FromEngine
        self._peer = peer
        self._up = Channel(self._world, lambda frames: peer.take(event(self._identity, door.decode(frames))))  # type: ignore[attr-defined, arg-type]
        self._down = Channel(self._world, lambda frames: self._member.handle(lambda: self._receive(frames)))
        peer.connections[self._identity] = self._down
        self._member.handle(self._notice_up)

    def _notice_up(self) -> None:
        if self._up is not None:
            self.believed_up = True
            self._changed(ConnectionEvent.UP)


class Caller:
    """What one caller has been told."""

    def __init__(self, request_id: RequestId, max_tokens: int) -> None:
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.is_admitted = False
        self.num_tokens = 0
        self.num_resumes = 0
        self.end: str | None = None

    def take(self, token_ids: list[int]) -> None:
        assert self.is_admitted and self.end is None, f"{self.request_id}: tokens out of place"
        for token_id in token_ids:
            assert token_id == token_at(self.request_id, self.num_tokens), f"{self.request_id}: a wrong token"
            self.num_tokens += 1

    def finish(self, end: str) -> None:
        assert self.end is None, f"{self.request_id} ends twice: {self.end}, {end}"
        self.end = end


class ClientProcess(Process):
    """An API server."""

    def __init__(self, world: World, coordinators: Coordinators, name: str, number: int) -> None:
        super().__init__(world)
        self.name, self.pid = name, number
        incarnation = Incarnation(f"a{number}")
        self.address = f"ipc:///{name}"
        hello = ClientHello(PROTOCOL_VERSION, name, incarnation, self.address, number, started_s=world.now_s)
        self.core = ClientCore(hello, RESUME_TIMEOUT_S)
        self.callers: dict[RequestId, Caller] = {}
        identity = Identity(member_identity(name, incarnation))
        self.connection = Connection(
            self, coordinators, Link.CLIENTS, identity, self._receive, self._connection_changed
        )
        self.each(1.0, lambda: self.tell(SecondPassed()))

    def submit(self, request_id: RequestId, max_tokens: int) -> Caller:
        caller = self.callers[request_id] = Caller(request_id, max_tokens)
        prompt = pack_token_ids([int(request_id)])
        self.handle(lambda: self.tell(Submit(request_id, MODEL.name, prompt, SamplingParams(max_tokens), 0.0)))
        return caller

    def take_outputs(self, frames: list[bytes]) -> None:
        self.handle(lambda: self.tell(AT_OUTPUTS.decode(frames).message))

    def tell(self, event: ClientEvent) -> None:
        for command in self.core.handle(event, self.world.now_s):
            match command:
                case Send(message, buffers):
                    if not self.connection.send(encode(message, *buffers)):
                        self.connection.notice_down()
                        if isinstance(message, EngineCoreRequest):
                            self.tell(NotSent(message.request_id))
                case Admit(request_id):
                    self.callers[request_id].is_admitted = True
                case Deliver(request_id, token_ids, finish_reason):
                    self.callers[request_id].take(token_ids)
                    if finish_reason is not None:
                        self.callers[request_id].finish("whole")
                case Refuse(request_id, reason):
                    self.callers[request_id].finish(f"refused: {reason.name}")
                case Fail(request_id, message):
                    self.callers[request_id].finish(f"failed: {message}")
                case Forget(request_id):
                    self.callers[request_id].finish("abandoned")
                case Resumed(request_id):
                    self.callers[request_id].num_resumes += 1
                case Leave(why):
                    raise AssertionError(f"{self.name}, which lives, is refused: {why}")
                case _:
                    pass
        self.core.check_invariants()

    def _receive(self, frames: list[bytes]) -> None:
        self.tell(AT_CLIENT.decode(frames).message)  # type: ignore[arg-type]

    def _connection_changed(self, event: ConnectionEvent) -> None:
        self.tell(LinkUp() if event is ConnectionEvent.UP else LinkDown())


class Running:
    """One request in an engine core."""

    def __init__(self, arrived: RequestArrived) -> None:
        self.request = arrived.request
        output = list(arrived.prompt)[1:]
        assert output == [token_at(self.request.request_id, place) for place in range(len(output))], "not its output"
        assert len(output) == self.request.num_output_tokens < self.request.sampling.max_tokens
        self.num_output_tokens = len(output)

    def step(self) -> EngineCoreOutput:
        position = self.num_output_tokens
        self.num_output_tokens += 1
        request = self.request
        is_last = self.num_output_tokens >= request.sampling.max_tokens
        reason = FinishReason.LENGTH if is_last else None
        return EngineCoreOutput(
            request.request_id, request.attempt, position, [token_at(request.request_id, position)], reason
        )


class EngineProcess(Process):
    """An engine core."""

    def __init__(
        self,
        world: World,
        coordinators: Coordinators,
        name: str,
        number: int,
        push_to: Callable[[str, list[bytes]], None],
    ) -> None:
        super().__init__(world)
        self.name, self.pid = name, number
        incarnation = Incarnation(f"e{number}")
        self.link = CoordinatorLink(
            EngineIdentity(
                name=name,
                incarnation=incarnation,
                pid=number,
                model=MODEL,
                packed_card=b"",
                vocab_size=VOCABULARY,
                started_s=world.now_s,
            )
        )
        self.requests: dict[RequestId, Running] = {}
        self._streams = OutputStreams(incarnation, lambda client: _Push(lambda frames: push_to(client.address, frames)))
        self._clients: dict[ClientIndex, ClientAddress] = {}
        self._ended: list[RequestKey] = []
        self._unreachable: list[ClientIndex] = []
        self._welcome = self._adds_handled = 0
        identity = Identity(member_identity(name, incarnation))
        self.connection = Connection(self, coordinators, Link.ENGINES, identity, self._receive, self._tell_link)
        self.each(STEP_S, self._step)
        self.each(0.5, self._second_half_passed)

    def drain(self) -> None:
        """SIGTERM, with its time up at once."""
        outputs: dict[ClientIndex, list[EngineCoreOutput]] = {}
        for running in list(self.requests.values()):
            request = running.request
            word = EngineCoreOutput(
                request.request_id,
                request.attempt,
                running.num_output_tokens,
                [],
                FinishReason.ABORT,
                error="shut down",
            )
            outputs.setdefault(request.client_index, []).append(word)
            self._end(request.key)
        self._send(outputs)
        self._report()
        self.is_alive = False

    def _step(self) -> None:
        outputs: dict[ClientIndex, list[EngineCoreOutput]] = {}
        for running in list(self.requests.values()):
            output = running.step()
            outputs.setdefault(running.request.client_index, []).append(output)
            if output.finish_reason is not None:
                self._end(running.request.key)
        self._send(outputs)
        self._report()

    def _second_half_passed(self) -> None:
        if self._streams.next_tail_s <= self.world.now_s:
            self._give_up(self._streams.send_tails(0.0, self.world.now_s))

    def _send(self, outputs: dict[ClientIndex, list[EngineCoreOutput]]) -> None:
        self._give_up(self._streams.send(outputs, 0.0, self.world.now_s))

    def _give_up(self, clients: list[ClientIndex]) -> None:
        for client_index in clients:
            self._take(ClientStuck(client_index))

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        unreachable, self._unreachable = self._unreachable, []
        load = Load(running=len(self.requests))
        counts = self._adds_handled, self._welcome, self.world.now_s
        self._tell_link(CoreStatus(load, ended, *counts, unreachable=unreachable))

    def _receive(self, frames: list[bytes]) -> None:
        self._tell_link(AT_ENGINE.decode(frames))

    def _tell_link(self, event: LinkEvent) -> None:
        for command in self.link.handle(event, self.world.now_s):
            match command:
                case EngineSend(message, buffers):
                    if not self.connection.send(encode(message, *buffers)):
                        self._tell_link(SendFailed())
                case TellCore(event=news):
                    self._take(news)
                case TellOutputs(news=Joined(engine_index)):
                    self._streams.joined(engine_index)
                case TellOutputs(news=ClientsChanged(addresses)):
                    self._streams.set_clients(addresses)
                case _:
                    raise AssertionError(command)

    def _take(self, event: CoreEvent) -> None:
        match event:
            case RequestArrived():
                self._adds_handled += 1
                self._add(event)
            case RequestInvalid(request, error):
                self._adds_handled += 1
                raise AssertionError(f"{request.request_id}: {error}")
            case RequestsAborted(keys):
                for key in keys:
                    running = self.requests.get(key.request_id)
                    if running is not None and running.request.key == key:
                        self._end(key)
            case ClientsChanged(addresses):
                gone = {index for index, address in self._clients.items() if addresses.get(index) != address}
                self._clients = addresses
                self._drop_clients(gone)
            case ClientStuck(client_index):
                self._drop_clients({client_index})
                self._unreachable.append(client_index)
            case CoordinatorRefused():
                raise AssertionError(f"{self.name}, which lives, is refused")
            case CoordinatorWelcomed(welcome):
                self._welcome, self._adds_handled = welcome, 0
            case _:
                raise AssertionError(event)

    def _add(self, arrived: RequestArrived) -> None:
        """As Scheduler.add does."""
        request = arrived.request
        known = self.requests.get(request.request_id)
        if known is not None and known.request.attempt >= request.attempt:
            if known.request.attempt > request.attempt:
                self._ended.append(request.key)
            return
        if known is not None:
            self._end(known.request.key)
        self.requests[request.request_id] = Running(arrived)

    def _drop_clients(self, clients: set[ClientIndex]) -> None:
        for running in list(self.requests.values()):
            if running.request.client_index in clients:
                self._end(running.request.key)

    def _end(self, key: RequestKey) -> None:
        del self.requests[key.request_id]
        self._ended.append(key)


class _Push:
    """An output socket: engine_core.output_streams.PushSocket."""

    def __init__(self, send: Callable[[list[bytes]], None]) -> None:
        self._send = send

    def send_multipart(self, msg_parts: list[Frame], flags: int = 0) -> None:
        self._send(msg_parts)  # type: ignore[arg-type]

    def close(self, linger: int | None = None) -> None:
        pass
