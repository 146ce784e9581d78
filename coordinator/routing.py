"""The routing policy: which engine core gets a request. Pure functions; no state, no clock.

The cost of an engine core is what a new request would have to wait for there, and what it would cost the others, in
prompt tokens: those queued (reported, or routed since the report), three times the request's own less what is stored of
them there, a weight for each request it has, and more when its KV cache fills up. Requests go to the cheapest; among
equals the turn goes round, so that an idle cluster is filled evenly.

So what is stored is a weight and no law. Prompts that begin alike go to one place while the queue there is shorter than
what computing the beginning anew would cost; then one goes elsewhere, and from then on there are two places. What many
prompts begin with and then go on differently (a system prompt) counts less with each, because it is worth having in
several places: else all conversations would pile up where the first one began. A session key works alike: of all engine
cores each key has a favourite, which costs a little less.

An engine core that takes no requests, or whose KV cache is full, is left out while there is another.
"""

import hashlib
from collections.abc import Container, Sequence

import msgspec

from protocol.identifiers import EngineIndex
from protocol.messages import EngineCoreRequest, RejectReason, RouteReason, TokenAllowance

REQUEST_WEIGHT_TOKENS = 64
"""What one unfinished request costs, in prompt tokens: about the decode steps it has still ahead of it when answers
have some hundred tokens, at half of a prefill token's cost each. A judgement, not a measurement: it spreads short
prompts by count (64 is more than most of them have) and long prompts by tokens."""

PREFILL_WEIGHT = 3
"""What a prompt token that must be computed costs, against one of another request to wait for: computing a prefix in a
second place delays all who come after, and takes memory there. With 1 the second of two prompts that begin alike would
go elsewhere, since waiting for the beginning takes as long as computing it. Of 64 conversations of 8 turns over four
simulated engine cores (tests/unit/coordinator/test_routing_traces.py), all started at once, 94.8 % of what one engine
core alone would have had are found with 2, 98.1 % with 3; the fullest has 1.06 times the mean either way."""

HOT_SHARERS = 4
"""A beginning counts a quarter when this many requests had just it in common with what was there. The same
conversations with 2,048 tokens in common, begun within 20 s: the fullest engine core has 1.12 times the mean load,
without this 2.1 times, and 99.6 % are found. Of an all but idle cluster some engine cores still do more than others."""

SESSION_WEIGHT_TOKENS = 512
"""What a session's favourite is cheaper: worth waiting for 8 requests or half a thousand prompt tokens, for a cache
that might hold something; what a prompt is known to share counts by its tokens."""

KV_PRESSURE_TOKENS = 2048
"""What a KV cache that is all but full costs, growing from nothing at KV_PRESSURE_SHARE: a request may have to wait
there for others to end, or make them start anew."""
KV_PRESSURE_SHARE = 0.5
KV_FULL_SHARE = 0.95
"""From here on a KV cache counts as full: there is no room for most prompts."""

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
    kv_used_share: float = 0.0
    """Of its KV cache, 0 to 1, by running requests: stored blocks make way."""


class ModelView(msgspec.Struct, frozen=True, gc=False):
    """What the policy looks at in a model's requests."""

    served: bool
    """Some engine core serves it or has served it."""
    in_flight: int
    max_requests: int
    retry_after_s: float
    """Seconds after which a refused request has a chance."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An engine core that could get the request."""

    engine: EngineView
    cached_tokens: int
    """Prompt tokens that are stored there, or on their way there."""
    sharers: int = 0
    """Requests that had just these in common with what was there: see coordinator.block_index.Match."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The engine core that gets the request."""

    index: EngineIndex
    cached_tokens: int
    reason: RouteReason


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """No engine core gets the request."""

    reason: RejectReason
    message: str
    retry_after_s: float = 0.0
    allowance: TokenAllowance | None = None
    """For RATE_LIMITED by tokens."""


def candidates(
    request: EngineCoreRequest, engines: Sequence[EngineView], model: ModelView, indexes: Container[int]
) -> list[EngineView] | Refusal:
    """The engine cores that could get `request`, at least one, or why there is none.

    `indexes` are those of engine cores that are there or may come back. A wanted engine core is the only candidate, but
    not of an attempt after the first: what it wanted may be what it lost.
    """
    able = [engine for engine in engines if engine.model == request.model and engine.available]
    if _is_bound(request):
        able = [engine for engine in able if engine.index == request.engine_rank]
    if not able:
        return _refusal_without_candidates(request, engines, model, indexes)
    if model.in_flight >= model.max_requests:
        text = (
            f"{model.in_flight} requests for model {request.model!r} are in flight, the limit is {model.max_requests}"
        )
        return Refusal(RejectReason.OVERLOADED, text, model.retry_after_s)
    return [engine for engine in able if engine.kv_used_share < KV_FULL_SHARE] or able


def choose(request: EngineCoreRequest, among: Sequence[Candidate], last: EngineIndex) -> Choice:
    """The engine core for `request`, one of those given. `last` is the one chosen before this one."""
    favourite = _favourite(request.session_key, among)

    def rank(candidate: Candidate) -> tuple[int, bool, EngineIndex]:
        index = candidate.engine.index
        discount = SESSION_WEIGHT_TOKENS if index == favourite else 0
        return cost(candidate, request.num_prompt_tokens) - discount, index <= last, index

    chosen = min(among, key=rank)
    return Choice(chosen.engine.index, chosen.cached_tokens, _reason(request, chosen, among, favourite))


def cost(candidate: Candidate, num_prompt_tokens: int) -> int:
    """In prompt tokens to wait for: see above."""
    engine = candidate.engine
    pressure = max(0.0, engine.kv_used_share - KV_PRESSURE_SHARE) / (1 - KV_PRESSURE_SHARE)
    return (
        engine.queued_prefill_tokens
        + PREFILL_WEIGHT * (num_prompt_tokens - _counted(candidate))
        + REQUEST_WEIGHT_TOKENS * engine.requests
        + round(KV_PRESSURE_TOKENS * pressure)
    )


def _counted(candidate: Candidate) -> int:
    """What is stored there, or the part of it that is not worth having elsewhere too."""
    share = HOT_SHARERS / (HOT_SHARERS + candidate.sharers)
    return round(candidate.cached_tokens * share**2)


def _favourite(session_key: str, among: Sequence[Candidate]) -> EngineIndex | None:
    """Of a session (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): it changes only
    when it goes, or a better one comes, whoever else does."""
    if not session_key:
        return None
    session = session_key.encode("utf-8", "surrogatepass")

    def weight(index: EngineIndex) -> bytes:
        return hashlib.blake2b(session, digest_size=8, salt=index.to_bytes(8, "little")).digest()

    return max((candidate.engine.index for candidate in among), key=weight)


def _reason(
    request: EngineCoreRequest, chosen: Candidate, among: Sequence[Candidate], favourite: EngineIndex | None
) -> RouteReason:
    if request.attempt > 0:
        return RouteReason.RESUME
    if request.engine_rank >= 0:
        return RouteReason.HINT
    cached = [candidate.cached_tokens for candidate in among]
    if min(cached) < chosen.cached_tokens == max(cached):
        return RouteReason.AFFINITY
    if chosen.engine.index == favourite and len(among) > 1:
        return RouteReason.HINT
    return RouteReason.LOAD


def _is_bound(request: EngineCoreRequest) -> bool:
    return request.engine_rank >= 0 and request.attempt == 0


def _refusal_without_candidates(
    request: EngineCoreRequest, engines: Sequence[EngineView], model: ModelView, indexes: Container[int]
) -> Refusal:
    if not model.served:
        return Refusal(RejectReason.UNKNOWN_MODEL, f"no engine core has served a model named {request.model!r}")
    if not _is_bound(request):
        text = f"no engine core takes requests for model {request.model!r} at the moment"
        return Refusal(RejectReason.NO_ENGINE, text, RETRY_WITHOUT_ENGINE_S)
    has_another = any(engine.index == request.engine_rank and engine.model != request.model for engine in engines)
    if has_another or request.engine_rank not in indexes:
        text = f"there is no engine core {request.engine_rank} with model {request.model!r}"
        return Refusal(RejectReason.NO_SUCH_ENGINE, text)
    text = f"engine core {request.engine_rank} takes no requests at the moment"
    return Refusal(RejectReason.NO_ENGINE, text, RETRY_WITHOUT_ENGINE_S)
