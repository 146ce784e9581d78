import json
import re
from io import StringIO

import pytest
from rich.console import Console
from test_bench_summary import FAILED, record

from benchmarks.config import ServeBenchConfig
from benchmarks.notes import notes_on
from benchmarks.report import LoadResult, Report, compare, load_result, to_json
from benchmarks.schedule import ClosedLoop, LoadPattern, OpenLoop
from benchmarks.summary import RunSummary, ServiceLevel, summarise
from benchmarks.table import print_report
from benchmarks.workload import Calibration

CLOSED = ClosedLoop(2)
DISTRIBUTION_KEYS = ["count", "mean", "p50", "p90", "p95", "p99", "max"]


def run_of(wall_s: float = 2.0, cpu_s: float = 0.1, ttft_ms: float = 1000.0, open_loop: bool = False) -> RunSummary:
    level = ServiceLevel(ttft_ms=ttft_ms)
    return summarise([record(0), record(1, ended_s=wall_s)], level, cpu_s=cpu_s, open_loop=open_loop)


def result_of(*runs: RunSummary, server: str = "A", load: LoadPattern = CLOSED) -> LoadResult:
    return load_result(server, "http://one:1", "m", load, list(runs))


def report_of(*results: LoadResult) -> Report:
    return Report(
        shoal_version="1.2.3",
        started_at="2026-01-02T03:04:05+00:00",
        options=ServeBenchConfig(),
        calibration=Calibration(1.5, 30.0),
        results=list(results),
        comparisons=[compare(results[0], results[1])] if len(results) == 2 else [],
        notes=["look [here]"],
    )


def test_medians_are_over_runs() -> None:
    result = result_of(run_of(wall_s=2.0), run_of(wall_s=4.0), run_of(wall_s=8.0))
    assert result.medians["output_tokens_per_s"] == 2.0
    assert result.medians["requests_per_s"] == 0.5


def test_figures_that_no_run_has_are_left_out() -> None:
    run = summarise([record(content_times_s=[])], ServiceLevel(), cpu_s=0.0, open_loop=False)
    assert set(result_of(run).medians) == {"output_tokens_per_s", "requests_per_s", "e2e_ms_p50", "e2e_ms_p99"}


def test_a_comparison_gives_ratios_of_medians_and_says_when_runs_do_not_tell_apart() -> None:
    a = result_of(run_of(2.0), run_of(2.0), run_of(4.0))
    b = result_of(run_of(8.0), run_of(8.0), run_of(4.0), server="B")
    rate = next(figure for figure in compare(a, b).figures if figure.name == "output_tokens_per_s")
    assert (rate.a, rate.b, rate.ratio) == (4.0, 1.0, 0.25)
    assert (rate.a_range, rate.b_range, rate.ranges_overlap) == ((2.0, 4.0), (1.0, 2.0), True)
    apart = compare(a, result_of(run_of(8.0), run_of(8.0), server="B")).figures[0]
    assert not apart.ranges_overlap


def test_one_run_each_never_tells_servers_apart() -> None:
    figures = compare(result_of(run_of(2.0)), result_of(run_of(9.0), server="B")).figures
    assert all(figure.ranges_overlap for figure in figures)


def test_the_json_keys_are_stable() -> None:
    decoded = json.loads(to_json(report_of(result_of(run_of()), result_of(run_of(), server="B"))))
    assert list(decoded) == [
        "schema_version",
        "shoal_version",
        "started_at",
        "options",
        "calibration",
        "results",
        "comparisons",
        "notes",
    ]
    assert decoded["schema_version"] == 1
    (result, _) = decoded["results"]
    assert list(result) == ["server", "url", "model", "load", "runs", "medians"]
    assert result["load"] == {"type": "closed", "concurrency": 2}
    run = result["runs"][0]
    assert list(run) == [
        "wall_s",
        "requests",
        "succeeded",
        "failed",
        "errors",
        "error_examples",
        "empty",
        "output_tokens",
        "output_tokens_from",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens_per_s",
        "requests_per_s",
        "ttft_ms",
        "itl_ms",
        "time_per_token_ms",
        "e2e_ms",
        "goodput",
        "client",
    ]
    assert all(list(run[name]) == DISTRIBUTION_KEYS for name in ("ttft_ms", "itl_ms", "time_per_token_ms", "e2e_ms"))
    assert list(run["goodput"]) == ["requests", "share", "requests_per_s"]
    assert list(run["client"]) == ["cpu_share", "start_lag_ms_p99"]
    assert list(decoded["comparisons"][0]["figures"][0]) == [
        "name",
        "a",
        "b",
        "ratio",
        "a_range",
        "b_range",
        "ranges_overlap",
    ]
    assert list(result["medians"]) == [
        "output_tokens_per_s",
        "requests_per_s",
        "ttft_ms_p50",
        "ttft_ms_p99",
        "itl_ms_p50",
        "itl_ms_p99",
        "time_per_token_ms_p50",
        "e2e_ms_p50",
        "e2e_ms_p99",
        "goodput_requests_per_s",
        "goodput_share",
    ]


def test_failures_add_up() -> None:
    failing = summarise([record(failure=FAILED)], ServiceLevel(), cpu_s=0.0, open_loop=False)
    assert report_of(result_of(failing, run_of(), failing)).failed == 2


def test_the_table_shows_rates_percentiles_errors_notes_and_ratios() -> None:
    failing = summarise([record(0), record(1, failure=FAILED)], ServiceLevel(), cpu_s=0.0, open_loop=False)
    output = StringIO()
    print_report(
        report_of(result_of(failing, run_of()), result_of(run_of(), server="B")), Console(file=output, width=200)
    )
    shown = output.getvalue()
    for text in ("output tokens/s", "1 + 1 failed", "http_429", "too many", "look [here]", "~ 1.00", "B/A"):
        assert text in shown
    assert re.search(r"time to first token +│ run 1 │( +500 │){6}", shown)


@pytest.mark.parametrize(
    ("run", "options", "load", "note"),
    [
        (run_of(cpu_s=1.8), {}, ClosedLoop(2), "short of CPU"),
        (
            summarise([record(sent_s=0.6)], ServiceLevel(), cpu_s=0.0, open_loop=True),
            {},
            OpenLoop(1.0, "poisson", 9),
            "started late",
        ),
        (
            summarise([record(usage_output_tokens=None)], ServiceLevel(), cpu_s=0.0, open_loop=False),
            {},
            ClosedLoop(2),
            "no token usage",
        ),
        (
            summarise([record(has_content=False)], ServiceLevel(), cpu_s=0.0, open_loop=False),
            {},
            ClosedLoop(2),
            "no content",
        ),
        (run_of(), {"ignore_eos": True, "max_tokens": 9}, ClosedLoop(2), "ignore_eos"),
        (run_of(), {"min_tokens": 5, "max_tokens": 5}, ClosedLoop(2), "min_tokens"),
        (run_of(), {"prompt_tokens": 20}, ClosedLoop(2), "not as long"),
        (
            summarise([record(cached_tokens=9)], ServiceLevel(), cpu_s=0.0, open_loop=False),
            {},
            ClosedLoop(2),
            "another --seed",
        ),
    ],
)
def test_doubtful_results_carry_a_note(
    run: RunSummary, options: dict[str, int | bool], load: LoadPattern, note: str
) -> None:
    known: dict[str, int | bool] = {"prompt_tokens": 10, "max_tokens": 4} | options
    (found,) = notes_on(result_of(run, run, load=load), ServeBenchConfig(**known), 0.0)  # type: ignore[arg-type]
    assert note in found


def test_a_sound_result_carries_no_note() -> None:
    config = ServeBenchConfig(prompt_tokens=10, max_tokens=4, min_tokens=4, ignore_eos=True)
    assert notes_on(result_of(run_of()), config, 0.0) == []


def test_a_cached_chat_template_is_no_cache_hit() -> None:
    run = summarise([record(cached_tokens=6)], ServiceLevel(), cpu_s=0.0, open_loop=False)
    config = ServeBenchConfig(prompt_tokens=10, max_tokens=4)
    assert notes_on(result_of(run), config, 5.0) == []
    assert notes_on(result_of(run), config, 3.0) != []
    shared = ServeBenchConfig(prompt_tokens=10, shared_prefix_tokens=2, max_tokens=4)
    assert notes_on(result_of(run), shared, 3.0) == []
