"""The report as tables for a terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.report import Comparison, LoadResult, Report
from benchmarks.summary import Distribution, RunSummary


def print_report(report: Report, console: Console) -> None:
    """Writes all tables and notes to the console."""
    for result in report.results:
        console.print(_result_table(result))
    if any(run.errors for result in report.results for run in result.runs):
        console.print(_error_table(report.results))
    for comparison in report.comparisons:
        console.print(_comparison_table(comparison))
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False)


def _result_table(result: LoadResult) -> Table:
    table = Table(
        title=f"{result.server}: {result.model} at {result.url}, {result.load}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for number in range(len(result.runs)):
        table.add_column(f"run {number + 1}", justify="right")
    for name, show in _ROWS:
        cells = [show(run) for run in result.runs]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _requests(run: RunSummary) -> str:
    return f"{run.succeeded}" + (f" [red]+ {run.failed} failed[/red]" if run.failed else "")


def _percentiles(pick: Callable[[RunSummary], Distribution | None]) -> Callable[[RunSummary], str]:
    def show(run: RunSummary) -> str:
        found = pick(run)
        if found is None:
            return ""
        shown = (found.p50, found.p90, found.p95, found.p99, found.max, found.mean)
        return " / ".join(_ms(value) for value in shown)

    return show


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


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
    return "" if run.client.start_lag_ms_p99 is None else _ms(run.client.start_lag_ms_p99)


_ROWS: list[tuple[str, Callable[[RunSummary], str]]] = [
    ("requests", _requests),
    ("duration, s", lambda run: f"{run.wall_s:.1f}"),
    ("output tokens/s", lambda run: f"{run.output_tokens_per_s:.1f}"),
    ("requests/s", lambda run: f"{run.requests_per_s:.2f}"),
    ("goodput, requests/s", _goodput),
    ("prompt tokens per request", _prompt),
    ("output tokens per request", _output),
    ("ms: p50 / p90 / p95 / p99 / max / mean", lambda run: " "),
    ("  time to first token", _percentiles(lambda run: run.ttft_ms)),
    ("  inter-token latency", _percentiles(lambda run: run.itl_ms)),
    ("  time per token, by request", _percentiles(lambda run: run.time_per_token_ms)),
    ("  end to end", _percentiles(lambda run: run.e2e_ms)),
    ("client: CPU of one core", lambda run: f"{run.client.cpu_share:.0%}"),
    ("client: start lag p99, ms", _lag),
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
    table = Table(title=f"A and B, {comparison.load}: medians over runs (least to greatest)", title_justify="left")
    for heading in ("", "A", "B", "B / A", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for figure in comparison.figures:
        ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
        verdict = "not told apart" if figure.ranges_overlap else ""
        a, b = _with_range(figure.a, figure.a_range), _with_range(figure.b, figure.b_range)
        table.add_row(figure.name, a, b, ratio, verdict)
    return table


def _with_range(median: float, values: tuple[float, float]) -> str:
    return f"{median:.2f} ({values[0]:.2f} to {values[1]:.2f})"
