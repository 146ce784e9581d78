"""The engine core's side of the engines link: what to say to the coordinator, and what its messages mean.

Each time the connection is made, by whichever coordinator, we say Hello with the requests that we still work on;
nothing is reported before, and what was not reported until then needs no report: the Hello restates everything.
Requests are listed from the moment they are taken, whether the busy loop has seen them or is inside a long step.

Events in, commands out; engine_core.input_thread moves the bytes.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from engine_core.block_changes import BlockChanges
from engine_core.block_report import BlockReport
from engine_core.events import (
    ClientsChanged,
    CoordinatorRefused,
    CoordinatorWelcomed,
    CoreEvent,
    CoreStatus,
    Joined,
    RequestInvalid,
    RequestsAborted,
)
from engine_core.request_check import check_request
from engine_core.status_board import is_news
from protocol.codec import Frame, Received
from protocol.heartbeats import HEARTBEAT_S
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Card,
    ClientAddress,
    Clients,
    CoordinatorToEngine,
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
from protocol.sockets import REFUSALS, ConnectionEvent


class Send(msgspec.Struct, frozen=True):
    """To the coordinator. When that is not possible, SendFailed must be handled."""

    message: Message
    buffers: Sequence[Frame] = ()


class TellCore(msgspec.Struct, frozen=True):
    """To the busy loop."""

    event: CoreEvent


class TellOutputs(msgspec.Struct, frozen=True):
    """To the output thread."""

    news: Joined | ClientsChanged


class DropMalformed(msgspec.Struct, frozen=True):
    """Something came that the protocol does not allow."""

    reason: str


class SendFailed(msgspec.Struct, frozen=True):
    """A message could not be sent: the coordinator may lack it."""


LinkEvent = ConnectionEvent | Received[CoordinatorToEngine] | CoreStatus | SendFailed
LinkCommand = Send | TellCore | TellOutputs | DropMalformed


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What this process says of itself."""

    name: str
    incarnation: Incarnation
    pid: int
    model: ModelInfo
    packed_card: bytes
    vocab_size: int
    stores_prefixes: bool = False
    started_s: float = 0.0
    """Wall clock, seconds."""


class CoordinatorLink:
    """Owner of what the coordinator has been told."""

    def __init__(self, identity: EngineIdentity) -> None:
        self._identity = identity
        self._connected = False
        self._greeted = False
        self._is_welcomed = False
        """Whether the coordinator has answered the last Hello."""
        self._greetings = 0
        self._welcomes = 0
        self._engine_index = EngineIndex(-1)
        self._coordinator = Incarnation("")
        """The one that welcomed us last."""
        self._clients: dict[ClientIndex, ClientAddress] = {}
        self._clients_number = 0
        self._taken: dict[RequestKey, tuple[ClientIndex, int]] = {}
        """Requests passed on to the busy loop that have not ended, with client and number of prompt tokens."""
        self._blocks = BlockReport()
        self._told_blocks = False
        """Whether the coordinator was told of all blocks since we greeted it, so that changes mean something to it."""
        self._reported = Load()
        self._next_report_s = 0.0

    @property
    def next_report_s(self) -> float:
        """When the newest status must be handled at the latest."""
        return self._next_report_s

    def handle(self, event: LinkEvent, now_s: float, malformed_total: int = 0) -> list[LinkCommand]:
        """Takes one event. `malformed_total` goes into the load, which is sent on a status."""
        match event:
            case ConnectionEvent.UP:
                self._connected = True
                return self._greet(now_s)
            case ConnectionEvent.DOWN:
                self._connected = self._greeted = self._told_blocks = False
                return []
            case ConnectionEvent.BROKEN_OFF:
                return []
            case ConnectionEvent.KEY_REFUSED | ConnectionEvent.MISMATCH:
                return [TellCore(CoordinatorRefused(REFUSALS[event]))]
            case SendFailed():
                # Again with the next report that is due, if the connection is still there.
                self._greeted = self._told_blocks = False
                self._next_report_s = now_s + HEARTBEAT_S
                return []
            case CoreStatus():
                return self._report(event, now_s, malformed_total)
            case Received(message=message, buffers=buffers):
                return self._received(message, buffers)
            case _:
                assert_never(event)

    def _received(self, message: CoordinatorToEngine, buffers: Sequence[Frame]) -> list[LinkCommand]:
        match message:
            case EngineCoreRequest():
                return self._request_received(message, buffers)
            case Abort(keys):
                return [TellCore(RequestsAborted(keys))]
            case Clients():
                return self._clients_changed(message)
            case EngineWelcome():
                return self._welcomed(message)
            case GetBlocks():
                return self._tell_all_blocks()
            case Refused(reason):
                return [TellCore(CoordinatorRefused(reason))]
            case _:
                assert_never(message)

    def _clients_changed(self, message: Clients) -> list[LinkCommand]:
        is_late = message.incarnation != self._coordinator or message.number < self._clients_number
        if message.number and is_late:
            return []  # of an older connection
        self._clients_number = message.number
        self._clients = {client.client_index: client for client in message.clients}
        changed = ClientsChanged(self._clients)
        return [TellOutputs(changed), TellCore(changed)]

    def _request_received(self, request: EngineCoreRequest, buffers: Sequence[Frame]) -> list[LinkCommand]:
        if not self._is_welcomed:
            return []  # sent before our Hello was read: it comes again after the Welcome, behind what it needs
        self._taken[request.key] = (request.client_index, request.num_prompt_tokens)
        if request.client_index not in self._clients:
            reason = f"request {request.request_id} is for client {request.client_index}, whose address never came"
            return [DropMalformed(reason), TellCore(RequestInvalid(request, reason))]
        prefix_card_hash = self._identity.model.card_hash if self._identity.stores_prefixes else None
        vocab_size, max_model_len = self._identity.vocab_size, self._identity.model.max_model_len
        return [TellCore(check_request(request, buffers, vocab_size, max_model_len, prefix_card_hash))]

    def _welcomed(self, welcome: EngineWelcome) -> list[LinkCommand]:
        if welcome.greeting and welcome.greeting != self._greetings:
            return []  # of an older connection
        self._welcomes += 1
        self._is_welcomed = True
        if welcome.incarnation != self._coordinator:
            self._coordinator, self._clients_number = welcome.incarnation, 0
        self._engine_index = welcome.engine_index
        commands: list[LinkCommand] = [
            TellOutputs(Joined(welcome.engine_index, welcome.incarnation)),
            TellCore(CoordinatorWelcomed(self._welcomes)),
        ]
        if welcome.want_card:
            commands.append(Send(Card(self._identity.model.card_hash), (self._identity.packed_card,)))
        return commands + self._tell_all_blocks()

    def _tell_all_blocks(self) -> list[LinkCommand]:
        if not self._identity.stores_prefixes:
            return []
        self._told_blocks = True
        return [Send(each.message, each.buffers) for each in self._blocks.whole()]

    def _tell_changes(self, changes: BlockChanges) -> list[LinkCommand]:
        messages = self._blocks.take(changes)
        return [Send(each.message, each.buffers) for each in messages] if self._told_blocks else []

    def _greet(self, now_s: float) -> list[LinkCommand]:
        self._greeted, self._told_blocks = True, False
        self._is_welcomed = False
        self._greetings += 1
        self._next_report_s = now_s + HEARTBEAT_S
        hello = EngineHello(
            PROTOCOL_VERSION,
            self._identity.name,
            self._identity.incarnation,
            self._identity.pid,
            self._identity.model,
            self._reported,
            [(key, client, num_prompt_tokens) for key, (client, num_prompt_tokens) in self._taken.items()],
            self._engine_index,
            sorted(self._clients),
            self._greetings,
            self._identity.started_s,
        )
        return [Send(hello)]

    def _report(self, status: CoreStatus, now_s: float, malformed_total: int) -> list[LinkCommand]:
        for key in status.ended:
            self._taken.pop(key, None)
        # Before the report: what a request that ended has stored is known then.
        blocks = self._tell_changes(status.blocks)
        load = _completed(status, now_s, malformed_total)
        worth_it = (
            bool(status.ended or status.unreachable) or is_news(self._reported, load) or now_s >= self._next_report_s
        )
        self._reported = load
        if self._connected and not self._greeted and now_s >= self._next_report_s:
            return self._greet(now_s)
        if not (self._greeted and worth_it):
            return blocks
        self._next_report_s = now_s + HEARTBEAT_S
        adds_received = status.adds_handled if status.welcome == self._welcomes else 0
        return [*blocks, Send(LoadReport(load, adds_received, status.ended, status.unreachable))]


def _completed(status: CoreStatus, now_s: float, malformed_total: int) -> Load:
    busy = bool(status.load.running or status.load.waiting)
    return msgspec.structs.replace(
        status.load,
        malformed_total=malformed_total,
        last_step_age_s=max(0.0, now_s - status.progressed_s) if busy else 0.0,
    )
