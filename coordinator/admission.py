"""Whether a model takes one more request, and when a refused one shall come back.

Limits count what waits for prefill, in requests and in tokens, per engine core that takes requests: so they grow and
shrink with the cluster, and bound how long the last one that was let in waits. When a limit is met, Retry-After is
the time in which, at the observed rate, enough of the queue will be gone for a good many to come in; waiting for a
single place would bring all the refused ones back at the same moment.

Priority is simple here: requests of a priority above 0, which are less urgent, meet the limits when they are three
quarters full, so that a batch job is refused before an interactive user is. Numbers below 0 gain nothing: whoever may
set them could else take every place.
"""

import math
from collections.abc import Sequence

import msgspec

from coordinator.rates import Rate
from coordinator.routing import EngineView, ModelView, Refusal
from protocol.messages import EngineCoreRequest, RejectReason

RETRY_SHARE = 0.1
"""A refused request is told to wait until this share of the limit will have drained, or what it lacks if that is
more."""
MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
RETRY_AFTER_UNKNOWN_S = 5.0
"""While nothing has drained yet that could be measured."""
LESS_URGENT_SHARE = 0.75
"""Of each limit, for requests of a priority above 0."""
MAX_MODELS = 256
"""Models remembered; at the limit the one that was met longest ago is forgotten."""


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be there at once."""

    max_requests: int
    """In flight per model, whether they wait or run."""
    max_waiting_requests: int = 1024
    """Per engine core. 16 full batches of the default size: an evaluation that sends a thousand requests at once is
    served, an endless queue is not built."""
    max_queued_prefill_tokens: int = 1_048_576
    """Per engine core. As many requests as above with prompts of a thousand tokens. Both bound memory and despair; for
    a bound on the time to the first token, take that time x the prompt tokens per second of an engine core."""


class _ModelRates:
    """How fast one model's queue drains."""

    def __init__(self) -> None:
        self.finished = Rate()
        self.prompt_tokens = Rate()


class Admission:
    """Owner of the models that have been served, each with the rates at which its requests go."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._rates: dict[str, _ModelRates] = {}

    def served(self, model: str) -> None:
        """An engine core with this model has joined."""
        rates = self._rates.pop(model) if model in self._rates else _ModelRates()
        self._rates[model] = rates
        if len(self._rates) > MAX_MODELS:
            del self._rates[next(iter(self._rates))]

    def finished(self, model: str, now_s: float) -> None:
        """A request for this model has ended by itself."""
        if model in self._rates:
            self._rates[model].finished.record(1, now_s)

    def computed(self, model: str, prompt_tokens: int, now_s: float) -> None:
        """So many prompt tokens for this model are no longer queued: they were computed, or found in a cache."""
        if model in self._rates and prompt_tokens > 0:
            self._rates[model].prompt_tokens.record(prompt_tokens, now_s)

    def refusal(self, request: EngineCoreRequest, engines: Sequence[EngineView], now_s: float) -> Refusal | None:
        """Why `request` must not be queued now; None when it may be, or when no engine core takes it anyway.

        A request that was let in before (a later attempt) is never refused: its caller has been told yes.
        """
        takers = [engine for engine in engines if engine.model == request.model and engine.available]
        if not takers or request.attempt > 0:
            return None
        share = LESS_URGENT_SHARE if request.priority > 0 else 1.0
        waiting = sum(engine.waiting_requests for engine in takers)
        most_waiting = int(share * len(takers) * self._limits.max_waiting_requests)
        if waiting + 1 > most_waiting:
            retry_s = self._retry_after_s(request.model, now_s, waiting + 1 - most_waiting, most_waiting)
            return _overloaded(f"{waiting} requests for model {request.model!r} wait already", retry_s)
        queued = sum(engine.queued_prefill_tokens for engine in takers)
        most_queued = int(share * len(takers) * self._limits.max_queued_prefill_tokens)
        excess = queued + request.num_prompt_tokens - most_queued
        if excess > 0 and queued > 0:  # alone, a prompt of any length may come in
            retry_s = self._retry_after_tokens_s(request.model, now_s, excess, most_queued)
            return _overloaded(f"{queued} prompt tokens for model {request.model!r} wait already", retry_s)
        return None

    def view(self, model: str, in_flight: int, now_s: float) -> ModelView:
        """What the routing policy must know of the model."""
        most = self._limits.max_requests
        retry_s = self._retry_after_s(model, now_s, 1, most)
        return ModelView(model in self._rates, in_flight, most, retry_s)

    def _retry_after_s(self, model: str, now_s: float, excess: int, limit: int) -> float:
        rate = self._rates[model].finished.per_second(now_s) if model in self._rates else 0.0
        return _time_to_drain_s(max(excess, RETRY_SHARE * limit), rate)

    def _retry_after_tokens_s(self, model: str, now_s: float, excess: int, limit: int) -> float:
        rate = self._rates[model].prompt_tokens.per_second(now_s) if model in self._rates else 0.0
        return _time_to_drain_s(max(excess, RETRY_SHARE * limit), rate)

    def check_invariants(self) -> None:
        """Raises AssertionError when a limit is broken."""
        assert len(self._rates) <= MAX_MODELS


def _time_to_drain_s(amount: float, rate: float) -> float:
    seconds = amount / rate if rate > 0 else RETRY_AFTER_UNKNOWN_S
    return math.ceil(min(max(seconds, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S))


def _overloaded(text: str, retry_after_s: float) -> Refusal:
    return Refusal(RejectReason.OVERLOADED, text, retry_after_s)
