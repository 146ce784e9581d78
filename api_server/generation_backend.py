"""What the HTTP side needs from the cluster, as interfaces: routes are written and tested against these alone.

Two implementations: the engine client (sockets) and the fake of the unit tests.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

from api_server.placement import Placement
from api_server.served_model import ServedModel
from protocol.grammar import GrammarSpec
from protocol.logprobs import TokenLogprobs
from protocol.messages import FinishReason, RejectReason, TokenAllowance
from protocol.sampling import SamplingParams


class TokenDelta(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one generation, all that piled up since the last delta."""

    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """STOP, LENGTH or TIMEOUT on the last delta; a generation that ends otherwise raises GenerationFailed instead."""
    stop_reason: int | None = None
    """The token of stop_token_ids that ended it."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again, as far as known by now."""
    logprobs: list[TokenLogprobs] = []
    """One for each token, when the request asked for them."""
    prompt_logprobs: list[TokenLogprobs] = []
    """With the first token, when the request asked for them: of the prompt's tokens from the second on."""


class AbortCause(enum.Enum):
    """Why the HTTP side no longer wants a generation; label of a metric."""

    STOP_STRING = "stop_string"
    """A stop string was found: the caller has all it asked for, finish reason "stop"."""
    DISCONNECT = "disconnect"
    """The caller went away, or the request was cancelled."""
    ERROR = "error"
    """Another generation of the same request failed or was rejected."""


class UnknownModel(Exception):
    """No model of this name is served."""


class NoModel(Exception):
    """No model is served yet, or it is not known which are."""


class Rejected(Exception):
    """The cluster does not take the generation."""

    def __init__(
        self, reason: RejectReason, message: str, retry_after_s: float, allowance: TokenAllowance | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.allowance = allowance


class GenerationFailed(Exception):
    """An accepted generation ended without a result."""

    def __init__(self, message: str, retryable: bool, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        """Whether the same request may succeed when it is sent again."""
        self.field = field
        """Path of the field of the caller's request that is to blame, if one is."""


class Collector(Protocol):
    """The reading end of one accepted generation."""

    async def get(self) -> TokenDelta:
        """Waits for the next tokens. Nothing follows a delta with a finish reason. Raises GenerationFailed."""


class GenerationBackend(Protocol):
    """The cluster as the routes see it."""

    @property
    def ready(self) -> bool:
        """Whether a request could be served now."""

    @property
    def progressing(self) -> bool:
        """Whether what is to be done each second is done, heartbeats to the coordinator among it."""

    @property
    def draining(self) -> bool:
        """Whether this API server is shutting down: new connections go elsewhere."""

    @property
    def taking(self) -> bool:
        """Whether requests are answered: while it shuts down, those over open connections are, up to its deadline."""

    async def model(self, name: str | None) -> ServedModel:
        """The model of this name; None names the only one.

        Waits, for a bounded time, while it is not known whether it is served. Raises UnknownModel, or NoModel while
        none is served or none is known.
        """

    async def models(self) -> list[ServedModel]:
        """All models served now; waits and raises NoModel as `model`."""

    async def submit(
        self,
        model: ServedModel,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int,
        cache_salt: str,
        request_prefix: str,
        placement: Placement,
        deadline_s: float = 0.0,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> Collector:
        """Hands a generation to the cluster and returns once it is accepted.

        `request_prefix` starts its request id; at `deadline_s` (wall clock, 0 for never) it ends, by Rejected or, once
        accepted, with FinishReason.TIMEOUT; `tenant` is whose limits it counts for. A `grammar` is compiled after that:
        one that cannot be used fails the generation before its first token. Raises Rejected. When the call is cancelled
        while it waits, the backend aborts what it has sent.
        """

    def abort(self, collectors: Sequence[Collector], cause: AbortCause) -> None:
        """Ends generations; idempotent, also after their end. No delta is to be expected afterwards."""


class HttpMetrics(Protocol):
    """What the HTTP side reports, and the page of all metrics."""

    def exposition(self) -> tuple[bytes, str]:
        """(body, content type) of GET /metrics."""

    def http_in_flight_changed(self, difference: int) -> None:
        """HTTP requests of /v1 began (+1) or ended (-1); 0 for a probe or a scrape."""

    def observe_http(self, route: str, status: int) -> None:
        """Counts one HTTP response. `route` is a route of ours or "other"; 499 is a caller that went away."""
