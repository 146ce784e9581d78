"""What was measured of one request."""

import itertools

import msgspec

from benchmarks.answer import Failure


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are seconds since the start of its run."""

    index: int
    scheduled_s: float
    """When it was to start: the origin of its latencies (see schedule.OpenLoop)."""
    sent_s: float
    """When the client began to open its connection."""
    ended_s: float
    """When its answer was whole, or when it failed."""
    content_times_s: list[float] = []
    """When each event with content arrived."""
    failure: Failure | None = None
    has_content: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    usage_output_tokens: int | None = None
    """As the server counts them; None when it does not."""

    @property
    def output_tokens(self) -> int:
        """From usage, else the number of events with content (servers may put several tokens into one)."""
        return len(self.content_times_s) if self.usage_output_tokens is None else self.usage_output_tokens

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, network and queues included; None without a streamed token."""
        return self.content_times_s[0] - self.scheduled_s if self.content_times_s else None

    @property
    def itls_s(self) -> list[float]:
        """Inter-token latencies as a reader sees them: between events with content."""
        times_s = self.content_times_s
        return [later - earlier for earlier, later in itertools.pairwise(times_s)]

    @property
    def time_per_token_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens or events."""
        if len(self.content_times_s) < 2 or self.output_tokens < 2:
            return None
        return (self.content_times_s[-1] - self.content_times_s[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From its scheduled start to its end."""
        return self.ended_s - self.scheduled_s
