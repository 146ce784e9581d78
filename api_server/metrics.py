"""What this API server measures.

The API servers of one machine write to a shared directory (prometheus_client's multiprocess mode), so that each of
them shows the sum of all. That mode is chosen by an environment variable when prometheus_client is imported: import
this module after `metrics_files.prepare`.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from api_server.client_events import ResumeCause
from api_server.generation_backend import AbortCause
from api_server.generation_metrics import GenerationFamilies, GenerationObserver
from protocol.identifiers import EngineIndex
from protocol.messages import FinishReason, RejectReason, RouteReason

disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge beside every counter, which nobody reads


class Metrics:
    """Owns this process's counters; what is shown of them, and of others', is `metrics_page`'s matter."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._generations = GenerationFamilies(self.registry)
        self._num_generations = self._gauge("num_generations", "Generations submitted and not ended")
        self._rejected = self._counter("requests_rejected", "Generations refused, by reason", "reason")
        self._aborted = self._counter("requests_aborted", "Generations that their caller gave up, by cause", "cause")
        self._routed = self._counter(
            "requests_routed",
            "Generations given to an engine core, by why it was this one",
            *("model_name", "engine", "reason"),
        )
        self._resumed = self._counter("requests_resumed", "Times a generation went on as another attempt", "cause")
        self._http = self._counter("http_requests", "HTTP responses", "route", "status")
        self._http_in_flight = self._gauge("http_requests_in_flight", "HTTP requests of /v1 being answered")
        self._malformed = self._counter("malformed_messages", "Messages dropped as malformed", "process", "engine")
        for reason in RejectReason:
            self._rejected.labels(reason.name.lower())
        for resume_cause in ResumeCause:
            self._resumed.labels(resume_cause.value)
        for cause in AbortCause:
            self._aborted.labels(cause.value)
        self._malformed.labels("api_server", "")

    def generation_began(self, model_name: str, num_prompt_tokens: int, now_s: float) -> GenerationObserver:
        """A generation was submitted; exactly one of the three methods below ends it."""
        self._num_generations.inc()
        return GenerationObserver(self._generations.of(model_name), num_prompt_tokens, now_s)

    def generation_rejected(self, reason: RejectReason) -> None:
        """It was refused, by the coordinator or here."""
        self._num_generations.dec()
        self._rejected.labels(reason.name.lower()).inc()

    def generation_placed(
        self, observer: GenerationObserver, engine_index: EngineIndex, reason: RouteReason, expected_cached_tokens: int
    ) -> None:
        """The coordinator chose an engine core for it, once more if it had to be resumed."""
        self._routed.labels(observer.model_name, str(engine_index), reason.name.lower()).inc()
        if reason is not RouteReason.RESUME:
            observer.placed(expected_cached_tokens)

    def generation_ended(self, observer: GenerationObserver, reason: FinishReason, now_s: float) -> None:
        """It finished or failed."""
        self._num_generations.dec()
        observer.ended(reason, now_s)

    def generation_given_up(self, observer: GenerationObserver, cause: AbortCause, now_s: float) -> None:
        """Its caller wants no more of it; with a stop string found that is a success."""
        reason = FinishReason.STOP if cause is AbortCause.STOP_STRING else FinishReason.ABORT
        self.generation_ended(observer, reason, now_s)
        self._aborted.labels(cause.value).inc()

    def generation_resumed(self, cause: ResumeCause) -> None:
        """It has lost its engine core and goes on elsewhere: nothing begins or ends."""
        self._resumed.labels(cause.value).inc()

    def observe_http(self, route: str, status: int) -> None:
        """See `generation_backend.HttpMetrics`."""
        self._http.labels(route, str(status)).inc()

    def http_in_flight_changed(self, difference: int) -> None:
        """See `generation_backend.HttpMetrics`."""
        self._http_in_flight.inc(difference)

    def count_malformed(self) -> None:
        """A message was dropped."""
        self._malformed.labels("api_server", "").inc()

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"shoal:{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"shoal:{name}", documentation, multiprocess_mode="livesum", registry=self.registry)
