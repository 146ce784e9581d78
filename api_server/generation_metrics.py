"""Latencies and tokens of generations, per model: names and buckets are vLLM's, with the prefix `shoal:`."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from protocol.messages import FinishReason

TIME_TO_FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_COUNT_BUCKETS = tuple(float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5))
"""1, 2, 5, 10, ... 500,000: the longest contexts of 2026 have about a million tokens."""

CACHED_TOKENS_BUCKETS = (0.0, *(float(64 * 4**exponent) for exponent in range(8)))
"""0, a block of 64, and from there on by four to a million."""


class GenerationFamilies:
    """The metric families; `of` gives the members of one model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"shoal:{name}", documentation, ["model_name", *labels], registry=registry)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"shoal:{name}", documentation, ["model_name"], buckets=buckets, registry=registry)

        self.success = counter("request_success", "Generations ended, by reason", "finished_reason")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of generations whose first token came")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From submission to the first token", TIME_TO_FIRST_TOKEN_BUCKETS_S
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "From one delivery of tokens to the next", INTER_TOKEN_LATENCY_BUCKETS_S
        )
        self.e2e_latency = histogram("e2e_request_latency_seconds", "From submission to the end", E2E_LATENCY_BUCKETS_S)
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of ended generations", TOKEN_COUNT_BUCKETS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Output tokens of ended generations", TOKEN_COUNT_BUCKETS
        )
        self.expected_cached_tokens = histogram(
            "request_expected_cached_tokens", "Prompt tokens that routing took for stored", CACHED_TOKENS_BUCKETS
        )
        self.cached_tokens = histogram(
            "request_cached_tokens", "Prompt tokens that were not computed again", CACHED_TOKENS_BUCKETS
        )
        self.missed_cached_tokens = histogram(
            "request_missed_cached_tokens", "Prompt tokens expected to be stored that were not", CACHED_TOKENS_BUCKETS
        )
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model_name: str) -> "ModelMetrics":
        """The members of one model. Only names of model cards come here, so there are few."""
        if model_name not in self._models:
            self._models[model_name] = ModelMetrics(self, model_name)
        return self._models[model_name]


class ModelMetrics:
    """The members of one model, looked up once: a label look-up costs as much as an observation."""

    def __init__(self, families: GenerationFamilies, model_name: str) -> None:
        self.model_name = model_name
        self.success = {reason: families.success.labels(model_name, reason.name.lower()) for reason in FinishReason}
        self.prompt_tokens = families.prompt_tokens.labels(model_name)
        self.generation_tokens = families.generation_tokens.labels(model_name)
        self.time_to_first_token = families.time_to_first_token.labels(model_name)
        self.inter_token_latency = families.inter_token_latency.labels(model_name)
        self.e2e_latency = families.e2e_latency.labels(model_name)
        self.request_prompt_tokens = families.request_prompt_tokens.labels(model_name)
        self.request_generation_tokens = families.request_generation_tokens.labels(model_name)
        self.expected_cached_tokens = families.expected_cached_tokens.labels(model_name)
        self.cached_tokens = families.cached_tokens.labels(model_name)
        self.missed_cached_tokens = families.missed_cached_tokens.labels(model_name)


class GenerationObserver:
    """Measures one generation."""

    def __init__(self, metrics: ModelMetrics, num_prompt_tokens: int, now_s: float) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0
        self._submitted_s = now_s
        self._last_delivery_s = now_s
        self._expected_cached_tokens: int | None = None
        self._cached_tokens = 0

    @property
    def model_name(self) -> str:
        """Of its model."""
        return self._metrics.model_name

    def placed(self, expected_cached_tokens: int) -> None:
        """An engine core was chosen that should have so many prompt tokens stored."""
        self._expected_cached_tokens = expected_cached_tokens

    def delivered(self, num_tokens: int, now_s: float, cached_tokens: int = 0) -> None:
        """Tokens have come, the first with the prompt tokens that were cached; without any nothing is measured."""
        if num_tokens == 0:
            return
        if self._num_output_tokens == 0:
            self._cached_tokens = cached_tokens
        since_last_s = now_s - self._last_delivery_s
        if self._num_output_tokens == 0:
            self._metrics.time_to_first_token.observe(since_last_s)
            self._metrics.prompt_tokens.inc(self._num_prompt_tokens)
        else:
            self._metrics.inter_token_latency.observe(since_last_s)
        self._metrics.generation_tokens.inc(num_tokens)
        self._num_output_tokens += num_tokens
        self._last_delivery_s = now_s

    def ended(self, reason: FinishReason, now_s: float) -> None:
        """It has ended."""
        self._metrics.success[reason].inc()
        self._metrics.e2e_latency.observe(now_s - self._submitted_s)
        self._metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        self._metrics.request_generation_tokens.observe(self._num_output_tokens)
        if self._expected_cached_tokens is not None and self._num_output_tokens > 0:
            self._metrics.expected_cached_tokens.observe(self._expected_cached_tokens)
            self._metrics.cached_tokens.observe(self._cached_tokens)
            self._metrics.missed_cached_tokens.observe(max(0, self._expected_cached_tokens - self._cached_tokens))
