"""What the threads of an engine core tell one another."""

from array import array
from collections.abc import Sequence

import msgspec

from engine_core.block_changes import BlockChanges
from engine_core.grammar import Grammar
from engine_core.ssd_tier import BlocksRead, SsdReport
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import ClientAddress, EngineCoreRequest, Load, RequestKey
from protocol.prefix_hash import BlockHash


class RequestArrived(msgspec.Struct, frozen=True):
    """A request that passed its checks."""

    request: EngineCoreRequest
    prompt: "array[int]"
    chain: Sequence[BlockHash] = ()
    """Names of its prefixes (protocol.prefix_hash); empty where none are stored."""


class RequestInvalid(msgspec.Struct, frozen=True):
    """A request that did not pass its checks: it ends with this error."""

    request: EngineCoreRequest
    error: str


class GrammarCompiled(msgspec.Struct, frozen=True):
    """A request's grammar is there."""

    key: RequestKey
    grammar: Grammar


class GrammarDenied(msgspec.Struct, frozen=True):
    """A request's grammar cannot be used: it ends with this error."""

    key: RequestKey
    error: str
    is_own_fault: bool = False
    """Whether the request's caller is not to blame."""


class RequestsAborted(msgspec.Struct, frozen=True):
    """Requests that are no longer wanted."""

    keys: list[RequestKey]


class ClientsChanged(msgspec.Struct, frozen=True):
    """The API servers that there are now, each with the address of its outputs."""

    addresses: dict[ClientIndex, ClientAddress]


class ClientStuck(msgspec.Struct, frozen=True):
    """An API server does not take its outputs any more: its requests are lost."""

    client_index: ClientIndex


class CoordinatorWelcomed(msgspec.Struct, frozen=True):
    """The coordinator has answered our Hello: what it sends from now on is counted from 0."""

    welcome: int
    """1, 2, 3, ...: the how manieth Welcome of this process it is."""


class CoordinatorRefused(msgspec.Struct, frozen=True):
    """The coordinator does not want this process."""

    reason: str


class DrainRequested(msgspec.Struct, frozen=True):
    """Finish what is there and end."""


CoreEvent = (
    RequestArrived
    | RequestInvalid
    | GrammarCompiled
    | GrammarDenied
    | RequestsAborted
    | ClientsChanged
    | ClientStuck
    | CoordinatorWelcomed
    | CoordinatorRefused
    | DrainRequested
    | BlocksRead
    | SsdReport
)
"""What reaches the busy loop."""


class Joined(msgspec.Struct, frozen=True):
    """To the output thread: the coordinator has welcomed us."""

    engine_index: EngineIndex
    coordinator: Incarnation


class CoreStatus(msgspec.Struct, frozen=True):
    """To the link to the coordinator: where the busy loop stands."""

    load: Load
    ended: list[RequestKey]
    """Requests that ended since the last status."""
    adds_handled: int
    """Requests handled since the Welcome `welcome`; `load` includes them and none later."""
    welcome: int
    progressed_s: float
    """When a step was last completed or work began, in the clock of the busy loop; of no meaning when idle."""
    blocks: BlockChanges = {}
    """What was stored and evicted since the last status."""
    unreachable: list[ClientIndex] = []
    """API servers that were found not to take their outputs since the last status."""
