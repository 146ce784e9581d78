"""What is measured, and the page that shows it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api_server import metrics_files
from api_server.cluster_metrics import cluster_families
from api_server.cluster_view import ClusterView
from api_server.generation_backend import AbortCause
from api_server.metrics import Metrics
from api_server.metrics_page import MetricsPage
from protocol.identifiers import EngineIndex, Incarnation
from protocol.messages import ClusterSnapshot, EngineState, FinishReason, Load, ModelInfo, RejectReason, RouteReason


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"shoal:{name}", labels)
    assert found is not None, name
    return found


def two_engines() -> ClusterView:
    def engine(index: int, load: Load) -> EngineState:
        model = ModelInfo("tiny", "c0", 64)
        return EngineState(EngineIndex(index), f"engine-{index}", Incarnation(f"e{index}"), model, load)

    busy = Load(
        running=2,
        waiting=1,
        kv_used_tokens=25,
        kv_capacity_tokens=100,
        steps_total=9,
        generation_tokens_total=30,
        finished_total={"stop": 4},
        malformed_total=3,
        prefix_queries_tokens_total=70,
        prefix_hits_tokens_total=64,
    )
    view = ClusterView()
    engines = [engine(0, busy), engine(1, Load(draining=True))]
    view.take_snapshot(ClusterSnapshot(1, Incarnation("c"), engines, ["api-0"], 5, {"overloaded": 6}))
    return view


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def page(metrics: Metrics, view: ClusterView | None = None) -> MetricsPage:
    return MetricsPage(metrics, lambda: cluster_families(view or two_engines(), True), None)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_generation_is_measured_from_submission_to_end(metrics: Metrics) -> None:
    observer = metrics.generation_began("tiny", 5, now_s=10.0)
    assert value(metrics, "num_generations") == 1
    observer.delivered(0, 10.1)
    observer.delivered(1, 10.5)
    observer.delivered(2, 10.7)
    metrics.generation_ended(observer, FinishReason.LENGTH, 11.0)
    assert value(metrics, "num_generations") == 0
    assert value(metrics, "time_to_first_token_seconds_sum", model_name="tiny") == pytest.approx(0.5)
    assert value(metrics, "inter_token_latency_seconds_sum", model_name="tiny") == pytest.approx(0.2)
    assert value(metrics, "inter_token_latency_seconds_count", model_name="tiny") == 1
    assert value(metrics, "e2e_request_latency_seconds_sum", model_name="tiny") == pytest.approx(1.0)
    assert value(metrics, "prompt_tokens_total", model_name="tiny") == 5
    assert value(metrics, "generation_tokens_total", model_name="tiny") == 3
    assert value(metrics, "request_prompt_tokens_sum", model_name="tiny") == 5
    assert value(metrics, "request_generation_tokens_sum", model_name="tiny") == 3
    assert value(metrics, "request_success_total", model_name="tiny", finished_reason="length") == 1


@pytest.mark.parametrize(
    ("cause", "reason"),
    [(AbortCause.STOP_STRING, "stop"), (AbortCause.DISCONNECT, "abort"), (AbortCause.ERROR, "abort")],
)
def test_a_stop_string_is_a_success_and_other_aborts_are_not(metrics: Metrics, cause: AbortCause, reason: str) -> None:
    metrics.generation_given_up(metrics.generation_began("tiny", 5, 0.0), cause, 1.0)
    assert value(metrics, "request_success_total", model_name="tiny", finished_reason=reason) == 1
    assert value(metrics, "requests_aborted_total", cause=cause.value) == 1
    assert value(metrics, "num_generations") == 0


def test_a_rejection_is_counted_by_reason(metrics: Metrics) -> None:
    metrics.generation_began("tiny", 5, 0.0)
    metrics.generation_rejected(RejectReason.OVERLOADED)
    assert value(metrics, "requests_rejected_total", reason="overloaded") == 1
    assert value(metrics, "num_generations") == 0


def test_the_page_shows_the_whole_cluster(metrics: Metrics) -> None:
    metrics.count_malformed()
    body, content_type = page(metrics).exposition()
    assert content_type.startswith("text/plain")
    found = samples(body.decode())

    def of(name: str, /, **labels: str) -> float:
        return found[(f"shoal:{name}", frozenset(labels.items()))]

    first = {"model_name": "tiny", "engine": "0"}
    second = {"model_name": "tiny", "engine": "1"}
    assert (of("num_requests_running", **first), of("num_requests_waiting", **first)) == (2, 1)
    assert (of("kv_cache_usage_perc", **first), of("kv_cache_usage_perc", **second)) == (0.25, 0)
    assert of("engine_up", **first, name="engine-0") + of("engine_up", **second, name="engine-1") == 2
    assert of("engine_draining", **second) == 1
    assert of("engine_generation_tokens_total", **first) == 30
    assert of("engine_steps_total", **first) == 9
    assert of("prefix_cache_queries_total", **first) == 70
    assert of("prefix_cache_hits_total", **first) == 64
    assert of("engine_requests_finished_total", **first, finished_reason="stop") == 4
    assert of("coordinator_rejected_total", reason="overloaded") == 6
    assert of("coordinator_up") == 1
    malformed = {
        process: of("malformed_messages_total", process=process, engine=engine)
        for process, engine in (("api_server", ""), ("coordinator", ""), ("engine_core", "0"))
    }
    assert malformed == {"api_server": 1, "coordinator": 5, "engine_core": 3}


def test_each_family_is_announced_once(metrics: Metrics) -> None:
    body, _ = page(metrics).exposition()
    for keyword in ("HELP", "TYPE"):
        names = [line.split()[2] for line in body.decode().splitlines() if line.startswith(f"# {keyword} ")]
        assert len(names) == len(set(names))
    assert "_created" not in body.decode()


def test_names_keep_their_colon(metrics: Metrics) -> None:
    body, content_type = page(metrics).exposition()
    assert content_type.startswith("text/plain")
    assert ("shoal:num_generations", frozenset()) in samples(body.decode())


def test_before_the_first_snapshot_the_page_is_whole(metrics: Metrics) -> None:
    body, _ = page(metrics, ClusterView()).exposition()
    assert b"shoal:coordinator_up 1.0" in body


PROCESS = """
import sys
from pathlib import Path
from api_server import metrics_files
directory = Path(sys.argv[1])
metrics_files.prepare(directory)
from api_server.metrics import Metrics
from api_server.metrics_page import MetricsPage
from protocol.messages import FinishReason
metrics = Metrics()
observer = metrics.generation_began("tiny", 5, 0.0)
observer.delivered(2, 0.5)
if sys.argv[2] == "finish":
    metrics.generation_ended(observer, FinishReason.STOP, 1.0)
print(MetricsPage(metrics, lambda: [], directory).exposition()[0].decode())
"""


def run_process(directory: Path, what: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    environment = {key: text for key, text in os.environ.items() if key != metrics_files.DIRECTORY_VARIABLE}
    result = subprocess.run(
        [sys.executable, "-c", PROCESS, str(directory), what],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return samples(result.stdout)


def test_the_api_servers_of_a_machine_show_their_sum_and_a_dead_one_has_nothing_in_flight(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"
    first = run_process(directory, "finish")
    tokens = ("shoal:generation_tokens_total", frozenset({("model_name", "tiny")}))
    in_flight = ("shoal:num_generations", frozenset[tuple[str, str]]())
    assert (first[tokens], first[in_flight]) == (2, 0)
    second = run_process(directory, "leave open")
    assert (second[tokens], second[in_flight]) == (4, 1)
    third = run_process(directory, "finish")
    assert (third[tokens], third[in_flight]) == (6, 0)


def test_gauges_of_an_earlier_process_with_our_pid_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(metrics_files.DIRECTORY_VARIABLE, raising=False)
    stale = tmp_path / f"gauge_livesum_{os.getpid()}.db"
    kept = [tmp_path / f"counter_{os.getpid()}.db", tmp_path / f"gauge_livesum_{os.getppid()}.db"]
    for path in (stale, *kept):
        path.write_bytes(b"")
    metrics_files.prepare(tmp_path)
    assert os.environ[metrics_files.DIRECTORY_VARIABLE] == str(tmp_path)
    monkeypatch.delenv(metrics_files.DIRECTORY_VARIABLE)
    assert not stale.exists()
    assert all(path.exists() for path in kept)


def test_where_generations_went_and_what_was_expected_there(metrics: Metrics) -> None:
    def run(reason: RouteReason, expected: int, real: int) -> None:
        observer = metrics.generation_began("tiny", 500, 0.0)
        metrics.generation_placed(observer, EngineIndex(1), reason, expected)
        observer.delivered(1, 0.1, real)
        observer.delivered(1, 0.2)
        metrics.generation_ended(observer, FinishReason.STOP, 0.3)

    run(RouteReason.AFFINITY, 320, 320)
    run(RouteReason.AFFINITY, 320, 64)
    run(RouteReason.LOAD, 0, 128)
    labels = {"model_name": "tiny", "engine": "1"}
    assert value(metrics, "requests_routed_total", **labels, reason="affinity") == 2
    assert value(metrics, "requests_routed_total", **labels, reason="load") == 1
    assert value(metrics, "request_expected_cached_tokens_sum", model_name="tiny") == 640
    assert value(metrics, "request_cached_tokens_sum", model_name="tiny") == 512
    assert value(metrics, "request_missed_cached_tokens_sum", model_name="tiny") == 256
    assert value(metrics, "request_missed_cached_tokens_bucket", model_name="tiny", le="0.0") == 2


def test_a_resume_counts_as_one_but_what_was_expected_stays_what_it_was_at_first(metrics: Metrics) -> None:
    observer = metrics.generation_began("tiny", 500, 0.0)
    metrics.generation_placed(observer, EngineIndex(0), RouteReason.LOAD, 64)
    observer.delivered(1, 0.1, 64)
    metrics.generation_placed(observer, EngineIndex(1), RouteReason.RESUME, 192)
    observer.delivered(1, 0.2, 192)
    metrics.generation_ended(observer, FinishReason.STOP, 0.3)
    assert value(metrics, "requests_routed_total", model_name="tiny", engine="1", reason="resume") == 1
    assert value(metrics, "request_expected_cached_tokens_sum", model_name="tiny") == 64
    assert value(metrics, "request_cached_tokens_sum", model_name="tiny") == 64


def test_nothing_is_compared_for_a_generation_without_tokens(metrics: Metrics) -> None:
    observer = metrics.generation_began("tiny", 500, 0.0)
    metrics.generation_placed(observer, EngineIndex(0), RouteReason.AFFINITY, 320)
    metrics.generation_given_up(observer, AbortCause.DISCONNECT, 0.3)
    assert value(metrics, "request_cached_tokens_count", model_name="tiny") == 0
