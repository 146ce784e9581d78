"""What the client core is told (events) and what it wants done (commands).

Messages of the coordinator and of the engine cores are events as they are; the others are defined here.
"""

import enum

import msgspec

from api_server.placement import Placement
from protocol.grammar import GrammarSpec
from protocol.identifiers import EngineIndex, RequestId
from protocol.logprobs import TokenLogprobs
from protocol.messages import (
    Abort,
    Accepted,
    Cleared,
    ClientHello,
    ClientWelcome,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineLost,
    FinishReason,
    Heartbeat,
    Refused,
    Rejected,
    RejectReason,
    RequestsLost,
    RouteReason,
    TokenAllowance,
)
from protocol.sampling import SamplingParams


class Submit(msgspec.Struct, frozen=True):
    """A generation is wanted."""

    request_id: RequestId
    model: str
    prompt: bytes
    """Packed token ids (see `protocol.codec.pack_token_ids`)."""
    sampling: SamplingParams
    arrival_time_s: float
    """Wall clock."""
    priority: int = 0
    cache_salt: str = ""
    deadline_s: float = 0.0
    """Wall clock; 0 for none."""
    tenant: str = ""
    placement: Placement = Placement()
    grammar: GrammarSpec | None = None

    @property
    def nbytes(self) -> int:
        """Of what is large in it, as characters of the grammar go."""
        return len(self.prompt) + (len(self.grammar.text) if self.grammar is not None else 0)


class Abandon(msgspec.Struct, frozen=True):
    """Whoever wanted these generations wants them no more; those that have ended are skipped."""

    request_ids: list[RequestId]


class AdmissionTimedOut(msgspec.Struct, frozen=True):
    """Nobody answered this submission in time."""

    request_id: RequestId


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The generation's time is up; its engine core, if it has one, has had the time to say so itself."""

    request_id: RequestId


class NotSent(msgspec.Struct, frozen=True):
    """The request could not be queued for the coordinator: the queue is at its high-water mark."""

    request_id: RequestId


class LinkUp(msgspec.Struct, frozen=True):
    """There is a new connection to the coordinator."""


class LinkDown(msgspec.Struct, frozen=True):
    """The connection to the coordinator is gone."""


class LinkRefused(msgspec.Struct, frozen=True):
    """There will be no connection to the coordinator."""

    reason: str


class SecondPassed(msgspec.Struct, frozen=True):
    """Time goes by."""


class FailAll(msgspec.Struct, frozen=True):
    """Every generation ends here: the process shuts down."""

    message: str


ClientEvent = (
    Submit
    | Abandon
    | AdmissionTimedOut
    | DeadlinePassed
    | NotSent
    | LinkUp
    | LinkDown
    | LinkRefused
    | SecondPassed
    | FailAll
    | ClientWelcome
    | Accepted
    | Rejected
    | EngineLost
    | RequestsLost
    | Refused
    | Heartbeat
    | EngineCoreOutputs
)


class Send(msgspec.Struct, frozen=True):
    """Send this to the coordinator."""

    message: ClientHello | EngineCoreRequest | Abort | Cleared | Heartbeat
    buffers: tuple[bytes, ...] = ()


class Placed(msgspec.Struct, frozen=True, gc=False):
    """The coordinator has chosen an engine core; comes again when it had to choose again."""

    request_id: RequestId
    engine_index: EngineIndex
    reason: RouteReason
    expected_cached_tokens: int


class Admit(msgspec.Struct, frozen=True):
    """The generation runs; tokens follow."""

    request_id: RequestId


class Refuse(msgspec.Struct, frozen=True):
    """The generation will not run. Terminal; comes instead of Admit, never after it."""

    request_id: RequestId
    reason: RejectReason
    message: str
    retry_after_s: float = 0.0
    allowance: TokenAllowance | None = None


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """New tokens, after Admit. Terminal when there is a finish reason (STOP, LENGTH or TIMEOUT)."""

    request_id: RequestId
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] = []
    """One for each token, when the request asked for them."""
    prompt_logprobs: list[TokenLogprobs] = []
    """With the first token, when the request asked for them: of the prompt's tokens from the second on."""


class ResumeCause(enum.Enum):
    """Why a generation goes on as another attempt; label of a metric."""

    ENGINE_LOST = "engine_lost"
    """Its engine core died, or was given up."""
    ENGINE_DRAINED = "engine_drained"
    OUTPUTS_LOST = "outputs_lost"
    """Tokens of it are missing."""
    REQUEST_LOST = "request_lost"
    """It never reached the engine core that it was given to, or was dropped there."""


class Resumed(msgspec.Struct, frozen=True):
    """The generation goes on elsewhere; nothing is to be done."""

    request_id: RequestId
    cause: ResumeCause


class Fail(msgspec.Struct, frozen=True):
    """The generation ended without a result, after Admit. Terminal."""

    request_id: RequestId
    message: str
    retryable: bool
    """Whether the same request may succeed when it is sent again."""
    field: str = ""
    """Path of the field of the caller's request that is to blame, if one is."""


class Forget(msgspec.Struct, frozen=True):
    """The generation ended because it was abandoned. Terminal; may come before Admit."""

    request_id: RequestId


class Leave(msgspec.Struct, frozen=True):
    """The coordinator does not want this process: end it."""

    reason: str


Command = Send | Placed | Admit | Refuse | Deliver | Resumed | Fail | Forget | Leave
