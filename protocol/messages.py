"""The catalogue of messages: one section and one union per direction of a link.

A message on the wire is `[type byte][payload][buffer]...`: the payload is the Struct in MessagePack as an
array, so fields are only ever appended, with defaults. Large or opaque data travels in the buffers, which the
coordinator hands on without a look. `protocol.codec` does the encoding; TYPE_NUMBERS fixes the type bytes.
"""

import enum
import time

import msgspec

from protocol.grammar import GrammarSpec
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.logprobs import PackedLogprobs
from protocol.sampling import SamplingParams

PROTOCOL_VERSION = 1
"""Changed when an old and a new process can no longer understand each other; a Hello that differs is refused."""


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Base of all that travels between processes."""


# --- shared parts -----------------------------------------------------------------------------------------


class RequestKey(Message, frozen=True):
    """A request and the attempt at it: a resubmitted request has attempt + 1."""

    request_id: RequestId
    attempt: int = 0


class EngineRun(Message, frozen=True, order=True):
    """One run of an engine core. The incarnation tells runs apart; a new coordinator may give another index."""

    engine_index: EngineIndex
    incarnation: Incarnation


class FinishReason(enum.IntEnum):
    """Why a request ended."""

    STOP = 1
    """End-of-sequence or stop token; the stop reason says which stop token."""
    LENGTH = 2
    """max_tokens, or the model's context is full."""
    ABORT = 3
    """Cancelled by its client or by a shutdown."""
    ERROR = 4
    """Failed; `error` of the output says why."""


class ModelInfo(Message, frozen=True):
    """The model that an engine core serves, in short; the card has the rest."""

    name: str
    card_hash: str
    max_model_len: int
    created: int = 0


class SsdLoad(Message, frozen=True):
    """What an engine core has done with the folder of its prefixes since its start."""

    nbytes: int
    """Size of the folder, whoever filled it."""
    hits_tokens_total: int
    """Tokens read from there, and so not computed."""
    written_blocks_total: int
    skipped_blocks_total: int
    """Blocks that were not written, because the disk was slow, or full."""
    damaged_blocks_total: int
    """Files that were dropped because they did not hold what they should."""


class Load(Message, frozen=True):
    """What an engine core has to do, and what it has done since its start."""

    running: int = 0
    """Requests in the batch (prefilling or decoding)."""
    waiting: int = 0
    """Requests not yet in the batch."""
    queued_prefill_tokens: int = 0
    """Prompt tokens of waiting and prefilling requests that are still to be computed."""
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    """Prompt tokens computed."""
    generation_tokens_total: int = 0
    finished_total: dict[str, int] = {}
    """Requests ended, by finish reason in lower case (stop, length, abort, error)."""
    malformed_total: int = 0
    """Frames that this engine core dropped as malformed."""
    preemptions_total: int = 0
    draining: bool = False
    """No new request is wanted."""
    last_step_age_s: float = 0.0
    """Seconds since the busy loop last completed a step while it had work; 0 when idle."""
    prefix_queries_tokens_total: int = 0
    """Prompt tokens of admitted requests, looked up in the prefix store; 0 without one."""
    prefix_hits_tokens_total: int = 0
    """Those of them that were found there, and so were not computed."""
    ssd: SsdLoad | None = None
    """Of the folder in which prefixes are kept, where there is one."""


class EngineState(Message, frozen=True):
    """One engine core as the coordinator sees it."""

    index: EngineIndex
    name: str
    incarnation: Incarnation
    model: ModelInfo
    load: Load = Load()
    requests: int = 0
    """Requests routed to it that have not ended."""


class Refused(Message, frozen=True):
    """coordinator -> anyone: your Hello is not accepted; do not come back with the same one."""

    reason: str


# --- clients link: API server (DEALER) -> coordinator (ROUTER) ----------------------------------------------


class ClientHello(Message, frozen=True):
    """First message on each connection, and again whenever the connection is made anew."""

    version: int
    name: str
    incarnation: Incarnation
    output_address: str
    """Where engine cores push this API server's outputs."""
    pid: int
    client_index: ClientIndex = ClientIndex(-1)
    """What an earlier Welcome gave (a coordinator takes it over while it settles); -1 for none."""
    engines: list[EngineRun] = []
    """Engine cores that have accepted, unfinished requests of it: each that the coordinator does not know, and does
    not meet within its settling time, or that has cut the streams to it, is answered with EngineLost, so that no
    loss is missed during a reconnect."""


class EngineCoreRequest(Message, frozen=True):
    """One generation. Its prompt travels as buffer 0: token ids, unsigned 32-bit little-endian.

    API server -> coordinator -> engine core, the same frames. Sent again (same attempt) by an API server that got no
    answer, or by the coordinator over a new connection: who has it already does not start it twice.
    """

    request_id: RequestId
    client_index: ClientIndex
    attempt: int
    model: str
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_time_s: float
    """Wall clock at the API server, seconds."""
    priority: int = 0
    """Lower is served first."""
    cache_salt: str = ""
    """Only requests with the same salt share computed prefixes."""
    num_output_tokens: int = 0
    """So many of the prompt's last token ids are output of an earlier attempt of this request: they are not generated
    again, and the first new token has this output position."""
    deadline_s: float = 0.0
    """Wall clock, seconds: whoever has the request then ends it; 0 for none."""
    session_key: str = ""
    """Requests with the same key had better run on the same engine core."""
    engine_rank: int = -1
    """Wanted engine core, counted in the order of their indices; -1 for any."""

    @property
    def key(self) -> RequestKey:
        """Request id and attempt."""
        return RequestKey(self.request_id, self.attempt)


class Abort(Message, frozen=True):
    """These requests are no longer wanted. Idempotent; unknown ones are skipped. No output follows."""

    keys: list[RequestKey]


class GetCard(Message, frozen=True):
    """Asks for the model card with this content hash; the answer is Card or CardUnknown."""

    card_hash: str


class Heartbeat(Message, frozen=True):
    """I am alive: from an API server each HEARTBEAT_S, and each time back from the coordinator."""


class ProcessExited(Message, frozen=True):
    """supervisor -> coordinator: the process behind this member is gone for certain."""

    name: str
    pid: int


# --- clients link: coordinator -> API server -----------------------------------------------------------------


class ClientWelcome(Message, frozen=True):
    """Answer to ClientHello; also sent to an API server that was given up and is heard again."""

    version: int
    incarnation: Incarnation
    """The coordinator's."""
    client_index: ClientIndex
    """Another one than before: all that was accepted under the old one is lost, no output of it will come."""


class Accepted(Message, frozen=True):
    """The request has an engine core; outputs or EngineLost follow."""

    key: RequestKey
    engine_index: EngineIndex
    engine_incarnation: Incarnation


class RejectReason(enum.IntEnum):
    """Why a request was not accepted."""

    NO_ENGINE = 1
    """No engine core serves this model now."""
    UNKNOWN_MODEL = 2
    OVERLOADED = 3
    DUPLICATE = 4
    """A request with this id and attempt is already known."""


class Rejected(Message, frozen=True):
    """Terminal: the request will not run."""

    key: RequestKey
    reason: RejectReason
    message: str
    retry_after_s: float = 0.0


class EngineLost(Message, frozen=True):
    """This incarnation of an engine core is gone, and with it the requests that it was given."""

    engine_index: EngineIndex
    incarnation: Incarnation
    reason: str


class Card(Message, frozen=True):
    """engine core -> coordinator -> API server: the model card, packed, as buffer 0."""

    card_hash: str


class CardUnknown(Message, frozen=True):
    """No engine core has sent a card with this hash."""

    card_hash: str


# --- engines link: engine core (DEALER) -> coordinator (ROUTER) ----------------------------------------------


class EngineHello(Message, frozen=True):
    """First message on each connection, and again whenever the connection is made anew."""

    version: int
    name: str
    incarnation: Incarnation
    pid: int
    model: ModelInfo
    load: Load = Load()
    requests: list[tuple[RequestKey, ClientIndex, int]] = []
    """Requests that it still works on, each with its client and number of prompt tokens."""
    engine_index: EngineIndex = EngineIndex(-1)
    """What an earlier Welcome gave (a restarted coordinator takes it over); -1 for none."""
    clients: list[ClientIndex] = []
    """API servers whose streams it has kept, by the last Clients: to any other, outputs may have been dropped."""


class LoadReport(Message, frozen=True):
    """Sent when the load changed, and each HEARTBEAT_S."""

    load: Load
    adds_received: int = 0
    """EngineCoreRequests received since the last EngineWelcome (0 between Hello and Welcome): what the coordinator
    sent after that many is not in `load` yet. Counts every request, also one dropped as a duplicate."""
    finished: list[RequestKey] = []
    """Requests that ended since the last report."""


# --- engines link: coordinator -> engine core -----------------------------------------------------------------


class ClientAddress(Message, frozen=True):
    """Where the outputs of one API server go."""

    client_index: ClientIndex
    address: str


class EngineWelcome(Message, frozen=True):
    """Answer to EngineHello."""

    version: int
    incarnation: Incarnation
    """The coordinator's."""
    engine_index: EngineIndex
    want_card: bool = False
    """Send the model card."""


class Clients(Message, frozen=True):
    """All API servers there are; requests of any other are to be dropped."""

    clients: list[ClientAddress]


# --- outputs link: engine core (PUSH) -> API server (PULL) ----------------------------------------------------


class EngineCoreOutput(Message, frozen=True):
    """New tokens of one request, or its end, or both."""

    request_id: RequestId
    attempt: int
    position: int
    """Output position of the first new token; 0 is the first generated token."""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token of the request's stop_token_ids that ended it (as in vLLM); None for end-of-sequence."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again; on the first output."""
    error: str | None = None
    logprobs: PackedLogprobs | None = None
    """Of the new tokens, when the request asked for them (protocol.logprobs)."""

    @property
    def key(self) -> RequestKey:
        """Request id and attempt."""
        return RequestKey(self.request_id, self.attempt)


class EngineCoreOutputs(Message, frozen=True):
    """All that one step produced for one API server."""

    engine_index: EngineIndex
    incarnation: Incarnation
    sequence: int
    """0, 1, 2, ... per engine core incarnation and client index, never anew: a gap is loss."""
    timestamp_s: float
    """Wall clock when the step's tokens were known, seconds."""
    outputs: list[EngineCoreOutput]
    client_index: ClientIndex = ClientIndex(-1)
    """Whose they are: an API server that has got another index meanwhile has nothing to do with them."""


# --- cluster link: coordinator (XPUB) -> anyone (SUB) -----------------------------------------------------------


class ClusterSnapshot(Message, frozen=True):
    """The whole state; sent on each membership change and to each new subscriber."""

    sequence: int
    incarnation: Incarnation
    engines: list[EngineState] = []
    api_servers: list[str] = []
    """Names."""
    malformed_total: int = 0
    """Frames that the coordinator dropped as malformed."""
    rejected_total: dict[str, int] = {}
    """Requests refused, by reject reason in lower case."""


class EngineUpdate(Message, frozen=True):
    """One engine core's new state. A gap in `sequence` means loss: subscribe anew to get a snapshot."""

    sequence: int
    engine: EngineState


# --- type bytes and unions ----------------------------------------------------------------------------------

TYPE_NUMBERS: dict[type[Message], int] = {
    ClientHello: 1,
    EngineCoreRequest: 2,
    Abort: 3,
    GetCard: 4,
    Heartbeat: 5,
    ProcessExited: 6,
    ClientWelcome: 16,
    Accepted: 17,
    Rejected: 18,
    EngineLost: 19,
    Card: 20,
    CardUnknown: 21,
    Refused: 22,
    EngineHello: 32,
    LoadReport: 33,
    EngineWelcome: 48,
    Clients: 49,
    EngineCoreOutputs: 64,
    ClusterSnapshot: 80,
    EngineUpdate: 81,
}
"""Never changed, never used again for another message."""

ClientToCoordinator = ClientHello | EngineCoreRequest | Abort | GetCard | Heartbeat | ProcessExited
CoordinatorToClient = ClientWelcome | Accepted | Rejected | EngineLost | Card | CardUnknown | Heartbeat | Refused
EngineToCoordinator = EngineHello | LoadReport | Card
CoordinatorToEngine = EngineWelcome | EngineCoreRequest | Abort | Clients | Refused
EngineToClient = EngineCoreOutputs
CoordinatorToAll = ClusterSnapshot | EngineUpdate


def wall_clock_s() -> float:
    """Seconds since the epoch; the only clock whose readings mean something in another process."""
    return time.time()
