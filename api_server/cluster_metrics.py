"""The cluster's metrics, made from the coordinator's published state at the time of a scrape.

Every API server shows the whole cluster; scrape any one of them.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from api_server.cluster_view import ClusterView
from protocol.messages import EngineState, Load

LABELS = ("model_name", "engine")


def cluster_families(view: ClusterView, is_connected: bool) -> Iterator[Metric]:
    """All families, each once. `is_connected` says whether this API server is in touch with the coordinator."""
    engines = view.engines
    up = GaugeMetricFamily("shoal:engine_up", "1 for each engine core in the cluster", labels=(*LABELS, "name"))
    for engine in engines:
        up.add_metric([*_labels(engine), engine.name], 1.0)
    yield up
    connected = GaugeMetricFamily("shoal:coordinator_up", "Whether this API server is in touch with the coordinator")
    connected.add_metric([], float(is_connected))
    yield connected
    yield from _gauges(engines)
    yield from _counters(engines)
    yield from _ssd_families(engines)
    yield _finished(engines)
    yield _rejected(view)
    yield from _tenants(view)
    yield _malformed(view)


def _gauges(engines: Iterable[EngineState]) -> Iterator[Metric]:
    def family(name: str, documentation: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"shoal:{name}", documentation, labels=LABELS)

    running = family("num_requests_running", "Requests in the batch")
    waiting = family("num_requests_waiting", "Requests not yet in the batch")
    usage = family("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1")
    queued = family("queued_prefill_tokens", "Prompt tokens still to be computed")
    draining = family("engine_draining", "Whether the engine core takes no new requests")
    step_age = family("engine_last_step_age_seconds", "Since the last step while there was work; 0 when idle")
    for engine in engines:
        load, labels = engine.load, _labels(engine)
        running.add_metric(labels, load.running)
        waiting.add_metric(labels, load.waiting)
        usage.add_metric(labels, _kv_usage(load))
        queued.add_metric(labels, load.queued_prefill_tokens)
        draining.add_metric(labels, float(load.draining))
        step_age.add_metric(labels, load.last_step_age_s)
    yield from (running, waiting, usage, queued, draining, step_age)


def _counters(engines: Iterable[EngineState]) -> Iterator[Metric]:
    def family(name: str, documentation: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"shoal:{name}", documentation, labels=LABELS)

    steps = family("engine_steps", "Steps of the busy loop")
    prompt_tokens = family("engine_prompt_tokens", "Prompt tokens computed")
    generation_tokens = family("engine_generation_tokens", "Tokens generated")
    preemptions = family("num_preemptions", "Requests put back to be computed again")
    queries = family("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
    hits = family("prefix_cache_hits", "Prompt tokens found in the prefix cache, and so not computed")
    for engine in engines:
        load, labels = engine.load, _labels(engine)
        steps.add_metric(labels, load.steps_total)
        prompt_tokens.add_metric(labels, load.prompt_tokens_total)
        generation_tokens.add_metric(labels, load.generation_tokens_total)
        preemptions.add_metric(labels, load.preemptions_total)
        queries.add_metric(labels, load.prefix_queries_tokens_total)
        hits.add_metric(labels, load.prefix_hits_tokens_total)
    yield from (steps, prompt_tokens, generation_tokens, preemptions, queries, hits)


def _ssd_families(engines: Iterable[EngineState]) -> Iterator[Metric]:
    """Of engine cores that keep prefixes on an SSD."""

    def family(name: str, documentation: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"shoal:ssd_cache_{name}", documentation, labels=LABELS)

    nbytes = GaugeMetricFamily("shoal:ssd_cache_bytes", "Size of the folder that keeps prefixes", labels=LABELS)
    hits = family("hits", "Prompt tokens read from it, and so not computed")
    written = family("written_blocks", "Blocks of 64 tokens written to it")
    skipped = family("skipped_blocks", "Blocks not written: the disk was slow, or full")
    damaged = family("damaged_blocks", "Blocks dropped because their file was damaged")
    for engine in engines:
        load, labels = engine.load.ssd, _labels(engine)
        if load is not None:
            nbytes.add_metric(labels, load.nbytes)
            hits.add_metric(labels, load.hits_tokens_total)
            written.add_metric(labels, load.written_blocks_total)
            skipped.add_metric(labels, load.skipped_blocks_total)
            damaged.add_metric(labels, load.damaged_blocks_total)
    yield from (nbytes, hits, written, skipped, damaged)


def _finished(engines: Iterable[EngineState]) -> Metric:
    labels = (*LABELS, "finished_reason")
    finished = CounterMetricFamily("shoal:engine_requests_finished", "Requests ended, by reason", labels=labels)
    for engine in engines:
        for reason, total in engine.load.finished_total.items():
            finished.add_metric([*_labels(engine), reason], total)
    return finished


def _rejected(view: ClusterView) -> Metric:
    rejected = CounterMetricFamily("shoal:coordinator_rejected", "Requests refused, by reason", labels=["reason"])
    for reason, total in view.rejected_total.items():
        rejected.add_metric([reason], total)
    return rejected


def _tenants(view: ClusterView) -> Iterator[Metric]:
    labels = ["tenant"]
    streams = GaugeMetricFamily("shoal:tenant_streams", "Generations of a tenant that have not ended", labels=labels)
    tokens = CounterMetricFamily("shoal:tenant_tokens", "Tokens of prompts and outputs, of those over", labels=labels)
    rejected = CounterMetricFamily("shoal:tenant_rejected", "Requests refused by a tenant's limits", labels=labels)
    for tenant in view.tenants:
        streams.add_metric([tenant.name], tenant.streams)
        tokens.add_metric([tenant.name], tenant.tokens_total)
        rejected.add_metric([tenant.name], tenant.rejected_total)
    yield from (streams, tokens, rejected)


def _malformed(view: ClusterView) -> Metric:
    """Joined on the page with the API servers' own family of this name."""
    labels = ("process", "engine")
    malformed = CounterMetricFamily("shoal:malformed_messages", "Messages dropped as malformed", labels=labels)
    malformed.add_metric(["coordinator", ""], view.malformed_total)
    for engine in view.engines:
        malformed.add_metric(["engine_core", str(engine.index)], engine.load.malformed_total)
    return malformed


def _labels(engine: EngineState) -> list[str]:
    return [engine.model.name, str(engine.index)]


def _kv_usage(load: Load) -> float:
    return load.kv_used_tokens / load.kv_capacity_tokens if load.kv_capacity_tokens > 0 else 0.0
