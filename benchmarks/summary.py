"""What the records of one run say: rates, percentiles, errors, goodput."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from benchmarks.record import RequestRecord

TokenSource = Literal["usage", "events", "mixed", "none"]


class Distribution(msgspec.Struct, frozen=True):
    """Of some durations, in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ServiceLevel(msgspec.Struct, frozen=True):
    """Limits that a good request keeps; None is no limit."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Of the request's mean time per output token after the first."""
    e2e_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return (self.ttft_ms, self.itl_ms, self.e2e_ms) != (None, None, None)

    def is_met_by(self, record: RequestRecord) -> bool:
        """Whether the request succeeded within the limits. One token has no ITL and so keeps its limit."""
        if record.failure is not None:
            return False
        if self.ttft_ms is not None and (record.ttft_s is None or record.ttft_s * 1e3 > self.ttft_ms):
            return False
        per_token_s = record.time_per_token_s
        if self.itl_ms is not None and per_token_s is not None and per_token_s * 1e3 > self.itl_ms:
            return False
        return self.e2e_ms is None or record.e2e_s * 1e3 <= self.e2e_ms


class Goodput(msgspec.Struct, frozen=True):
    """Requests within the service level (Zhong et al., DistServe, arXiv:2401.09670)."""

    requests: int
    share: float
    """Of all requests of the run, failed ones included."""
    requests_per_s: float


class ClientCost(msgspec.Struct, frozen=True):
    """Whether the load generator itself was the bottleneck."""

    cpu_share: float
    """Of one CPU core, over the run; it has one thread, so that near 1 it falls behind."""
    start_lag_ms_p99: float | None
    """How late requests started against their schedule; None in a closed loop and without requests."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Tokens, rates and latencies are those of the requests that succeeded."""

    wall_s: float
    """From the start of the run to the end of its last request."""
    requests: int
    succeeded: int
    failed: int
    errors: dict[str, int]
    """Failed requests by kind: http_<status>, connect, disconnected, timeout, error_event, no_finish_reason,
    no_done, malformed."""
    error_examples: dict[str, str]
    """What the server or the network said, the first time of each kind."""
    empty: int
    """Requests that succeeded with an answer without any content."""
    output_tokens: int
    output_tokens_from: TokenSource
    """`events`: for want of usage, events with content were counted; `none`: no token was counted at all."""
    prompt_tokens: int | None
    """None when the server does not say."""
    cached_tokens: int | None
    """Prompt tokens that came from the server's cache; None when it does not say."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    """Between events with content, over all of them."""
    time_per_token_ms: Distribution | None
    """Mean per request of the time per output token after the first, over requests."""
    e2e_ms: Distribution | None
    goodput: Goodput | None
    """None without a service level."""
    client: ClientCost


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of sorted values with linear interpolation between neighbours (numpy's default); 0 <= share <= 1."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(durations_s: Iterable[float | None]) -> Distribution | None:
    """Of the durations that exist, in milliseconds; None when there is none."""
    ordered = sorted(duration * 1e3 for duration in durations_s if duration is not None)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Distribution(len(ordered), statistics.fmean(ordered), p50, p90, p95, p99, ordered[-1])


def summarise(records: Sequence[RequestRecord], level: ServiceLevel, *, cpu_s: float, open_loop: bool) -> RunSummary:
    """Summary of one run. `cpu_s` is the client's own CPU time over the run, seconds."""
    good = [record for record in records if record.failure is None]
    wall_s = max((record.ended_s for record in records), default=0.0)
    output_tokens = sum(record.output_tokens for record in good)
    return RunSummary(
        wall_s=wall_s,
        requests=len(records),
        succeeded=len(good),
        failed=len(records) - len(good),
        errors=_errors(records),
        error_examples=_error_examples(records),
        empty=sum(not record.has_content for record in good),
        output_tokens=output_tokens,
        output_tokens_from=_token_source(good),
        prompt_tokens=_sum_known(record.prompt_tokens for record in good),
        cached_tokens=_sum_known(record.cached_tokens for record in good),
        output_tokens_per_s=_rate(output_tokens, wall_s),
        requests_per_s=_rate(len(good), wall_s),
        ttft_ms=distribution(record.ttft_s for record in good),
        itl_ms=distribution(itl_s for record in good for itl_s in record.itls_s),
        time_per_token_ms=distribution(record.time_per_token_s for record in good),
        e2e_ms=distribution(record.e2e_s for record in good),
        goodput=_goodput(records, level, wall_s) if level.is_set else None,
        client=ClientCost(_rate(cpu_s, wall_s), _start_lag_ms_p99(records) if open_loop else None),
    )


def _rate(amount: float, wall_s: float) -> float:
    return amount / wall_s if wall_s > 0 else 0.0


def _errors(records: Sequence[RequestRecord]) -> dict[str, int]:
    return dict(sorted(Counter(record.failure.label for record in records if record.failure).items()))


def _error_examples(records: Sequence[RequestRecord]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for record in records:
        if record.failure is not None:
            examples.setdefault(record.failure.label, record.failure.detail)
    return dict(sorted(examples.items()))


def _sum_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _token_source(good: Sequence[RequestRecord]) -> TokenSource:
    from_usage = {record.usage_output_tokens is not None for record in good if record.output_tokens}
    if len(from_usage) > 1:
        return "mixed"
    return "none" if not from_usage else "usage" if from_usage.pop() else "events"


def _goodput(records: Sequence[RequestRecord], level: ServiceLevel, wall_s: float) -> Goodput:
    met = sum(level.is_met_by(record) for record in records)
    return Goodput(met, met / len(records) if records else 0.0, _rate(met, wall_s))


def _start_lag_ms_p99(records: Sequence[RequestRecord]) -> float | None:
    lag = distribution(record.sent_s - record.scheduled_s for record in records)
    return lag.p99 if lag else None
