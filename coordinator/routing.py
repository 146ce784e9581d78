"""The routing policy: which engine core gets a request. Pure functions; no state, no clock.

The cost of an engine core is how much prefill a new request would have to wait for there, in tokens: prompt tokens
queued, reported or routed since the report, plus the request's own, plus a weight for each request it has. Requests
go to the cheapest engine core; among equals the turn goes round, so that an idle cluster is filled evenly.
"""

from collections.abc import Sequence

import msgspec

from protocol.identifiers import EngineIndex
from protocol.messages import EngineCoreRequest, RejectReason, TokenAllowance

REQUEST_WEIGHT_TOKENS = 64
"""What one unfinished request costs, in prompt tokens: about the decode steps it has still ahead of it when answers
have some hundred tokens, at half of a prefill token's cost each. A judgement, not a measurement: it spreads short
prompts by count (64 is more than most of them have) and long prompts by tokens."""

RETRY_WITHOUT_ENGINE_S = 2.0
"""Retry-After while no engine core serves the model: a small model is loaded again in about this time."""


class EngineView(msgspec.Struct, frozen=True, gc=False):
    """What the policy looks at in an engine core."""

    index: EngineIndex
    model: str
    available: bool
    """Takes new requests: welcomed, and not draining."""
    queued_prefill_tokens: int
    """Prompt tokens to be computed there, those routed since its last report included."""
    requests: int
    """Requests routed to it that have not ended."""
    waiting_requests: int = 0
    """Those of them that are not in the batch yet, as far as is known: who was just sent there counts as waiting."""


class ModelView(msgspec.Struct, frozen=True, gc=False):
    """What the policy looks at in a model's requests."""

    served: bool
    """Some engine core serves it or has served it."""
    in_flight: int
    max_requests: int
    retry_after_s: float
    """Seconds after which a refused request has a chance."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """No engine core gets the request."""

    reason: RejectReason
    message: str
    retry_after_s: float = 0.0
    allowance: TokenAllowance | None = None
    """For RATE_LIMITED by tokens."""


def choose(
    request: EngineCoreRequest, engines: Sequence[EngineView], model: ModelView, last: EngineIndex
) -> EngineIndex | Refusal:
    """The engine core for `request`, or why there is none. `last` is the one chosen before this one."""
    candidates = [engine for engine in engines if engine.model == request.model and engine.available]
    if not candidates:
        return _refusal_without_candidates(request, model)
    if model.in_flight >= model.max_requests:
        text = (
            f"{model.in_flight} requests for model {request.model!r} are in flight, the limit is {model.max_requests}"
        )
        return Refusal(RejectReason.OVERLOADED, text, model.retry_after_s)
    return min(candidates, key=lambda engine: (cost(engine, request), engine.index <= last, engine.index)).index


def cost(engine: EngineView, request: EngineCoreRequest) -> int:
    """Prefill tokens, or what is counted like them, until the request's first token could come."""
    return engine.queued_prefill_tokens + request.num_prompt_tokens + REQUEST_WEIGHT_TOKENS * engine.requests


def _refusal_without_candidates(request: EngineCoreRequest, model: ModelView) -> Refusal:
    if not model.served:
        return Refusal(RejectReason.UNKNOWN_MODEL, f"no engine core has served a model named {request.model!r}")
    text = f"no engine core takes requests for model {request.model!r} at the moment"
    return Refusal(RejectReason.NO_ENGINE, text, RETRY_WITHOUT_ENGINE_S)
