"""The report as tables for a terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.report import Comparison, LoadResult, Report
from benchmarks.summary import Distribution, RunSummary


def print_report(report: Report, console: Console) -> None:
    """Writes all tables and notes to the console."""
    for result in report.results:
        console.print(f"\n{result.server}: {result.model} at {result.url}, {result.load}", style="bold", markup=False)
        console.print(_rate_table(result))
        console.print(_latency_table(result))
    if any(run.errors for result in report.results for run in result.runs):
        console.print(_error_table(report.results))
    for comparison in report.comparisons:
        title = f"\nB against A, {comparison.load}: medians over runs (least-greatest); ~ not told apart by the runs"
        console.print(title, style="bold", markup=False)
        console.print(_comparison_table(comparison))
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False)


def _rate_table(result: LoadResult) -> Table:
    table = Table("")
    for number in range(len(result.runs)):
        table.add_column(f"run {number + 1}", justify="right")
    for name, show in _ROWS:
        cells = [show(run) for run in result.runs]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _requests(run: RunSummary) -> str:
    return f"{run.succeeded}" + (f" [red]+ {run.failed} failed[/red]" if run.failed else "")


def _latency_table(result: LoadResult) -> Table:
    table = Table("ms", "")
    for heading in ("p50", "p90", "p95", "p99", "max", "mean"):
        table.add_column(heading, justify="right")
    for name, pick in _LATENCIES:
        for number, run in enumerate(result.runs, 1):
            found = pick(run)
            if found is not None:
                shown = (found.p50, found.p90, found.p95, found.p99, found.max, found.mean)
                table.add_row(name, f"run {number}", *map(_number, shown))
    return table


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _prompt(run: RunSummary) -> str:
    if run.prompt_tokens is None or not run.succeeded:
        return ""
    cached = "" if run.cached_tokens is None else f" ({run.cached_tokens / run.succeeded:.0f} cached)"
    return f"{run.prompt_tokens / run.succeeded:.0f}{cached}"


def _output(run: RunSummary) -> str:
    return f"{run.output_tokens / run.succeeded:.1f}" if run.succeeded else ""


def _goodput(run: RunSummary) -> str:
    good = run.goodput
    return f"{good.requests_per_s:.2f} ({good.share:.0%})" if good else ""


def _lag(run: RunSummary) -> str:
    return "" if run.client.start_lag_ms_p99 is None else _number(run.client.start_lag_ms_p99)


_ROWS: list[tuple[str, Callable[[RunSummary], str]]] = [
    ("requests", _requests),
    ("duration, s", lambda run: f"{run.wall_s:.1f}"),
    ("output tokens/s", lambda run: f"{run.output_tokens_per_s:.1f}"),
    ("requests/s", lambda run: f"{run.requests_per_s:.2f}"),
    ("goodput, requests/s", _goodput),
    ("prompt tokens per request", _prompt),
    ("output tokens per request", _output),
    ("client: CPU of one core", lambda run: f"{run.client.cpu_share:.0%}"),
    ("client: start lag p99, ms", _lag),
]


_LATENCIES: list[tuple[str, Callable[[RunSummary], Distribution | None]]] = [
    ("time to first token", lambda run: run.ttft_ms),
    ("inter-token latency", lambda run: run.itl_ms),
    ("time per token (mean)", lambda run: run.time_per_token_ms),
    ("end to end", lambda run: run.e2e_ms),
]


def _error_table(results: list[LoadResult]) -> Table:
    table = Table("server", "load", "run", "error", "requests", "for example", title="failed requests")
    for result in results:
        for number, run in enumerate(result.runs, 1):
            for kind, count in run.errors.items():
                example = run.error_examples[kind].replace("[", r"\[")
                table.add_row(result.server, str(result.load), str(number), kind, str(count), example)
    return table


def _comparison_table(comparison: Comparison) -> Table:
    table = Table()
    for heading in ("", "A", "B", "B/A"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for figure in comparison.figures:
        ratio = ("~ " if figure.ranges_overlap else "") + ("-" if figure.ratio is None else f"{figure.ratio:.2f}")
        a, b = _with_range(figure.a, figure.a_range), _with_range(figure.b, figure.b_range)
        table.add_row(figure.name, a, b, ratio)
    return table


def _with_range(median: float, values: tuple[float, float]) -> str:
    return f"{_number(median)} ({_number(values[0])}-{_number(values[1])})"
