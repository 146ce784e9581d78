"""GET /metrics: what the API servers of this machine count, and the cluster as the coordinator sees it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from api_server import metrics_files
from api_server.metrics import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage(Collector):
    """Implements `generation_backend.HttpMetrics`."""

    def __init__(
        self, metrics: Metrics, cluster_families: Callable[[], Iterable[Metric]], shared_directory: Path | None
    ) -> None:
        """`shared_directory` is the one that `metrics_files.prepare` was given, if it was."""
        self._metrics = metrics
        self._cluster_families = cluster_families
        self._shared_directory = shared_directory

    def http_in_flight_changed(self, difference: int) -> None:
        """See HttpMetrics."""
        self._metrics.http_in_flight_changed(difference)

    def observe_http(self, route: str, status: int) -> None:
        """See HttpMetrics."""
        self._metrics.observe_http(route, status)

    def exposition(self) -> tuple[bytes, str]:
        """See HttpMetrics. The text format of Prometheus for everybody, whatever the scraper would rather have.

        prometheus_client's OpenMetrics writer (0.26) turns the colon of sample names into an underscore.
        """
        return generate_latest(self), CONTENT_TYPE

    def collect(self) -> Iterable[Metric]:
        """All families, each name once."""
        families = {family.name: family for family in self._api_server_families()}
        for family in self._cluster_families():
            if family.name in families:
                families[family.name].samples += family.samples
            else:
                families[family.name] = family
        return families.values()

    def _api_server_families(self) -> Iterable[Metric]:
        if self._shared_directory is None:
            return self._metrics.registry.collect()
        metrics_files.remove_dead_gauges(self._shared_directory)
        collector = MultiProcessCollector(None, str(self._shared_directory))  # type: ignore[no-untyped-call]
        families: Iterable[Metric] = collector.collect()  # type: ignore[no-untyped-call]
        return families
