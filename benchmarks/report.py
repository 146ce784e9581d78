"""The report: results of all loads, their medians over runs, comparisons of two servers; its JSON form is this schema.

`docs/benchmarking.md` describes it for users. Keys are only ever added; SCHEMA_VERSION changes if one must change.
"""

import statistics
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.config import ServeBenchConfig
from benchmarks.schedule import LoadPattern
from benchmarks.summary import Distribution, RunSummary
from benchmarks.workload import Calibration

SCHEMA_VERSION = 1

Figure = Callable[[RunSummary], float | None]


def _p50(pick: Callable[[RunSummary], Distribution | None]) -> Figure:
    return lambda run: found.p50 if (found := pick(run)) else None


def _p99(pick: Callable[[RunSummary], Distribution | None]) -> Figure:
    return lambda run: found.p99 if (found := pick(run)) else None


FIGURES: dict[str, Figure] = {
    "output_tokens_per_s": lambda run: run.output_tokens_per_s,
    "requests_per_s": lambda run: run.requests_per_s,
    "ttft_ms_p50": _p50(lambda run: run.ttft_ms),
    "ttft_ms_p99": _p99(lambda run: run.ttft_ms),
    "itl_ms_p50": _p50(lambda run: run.itl_ms),
    "itl_ms_p99": _p99(lambda run: run.itl_ms),
    "time_per_token_ms_p50": _p50(lambda run: run.time_per_token_ms),
    "e2e_ms_p50": _p50(lambda run: run.e2e_ms),
    "e2e_ms_p99": _p99(lambda run: run.e2e_ms),
    "goodput_requests_per_s": lambda run: run.goodput.requests_per_s if run.goodput else None,
    "goodput_share": lambda run: run.goodput.share if run.goodput else None,
}
"""What is taken the median of over runs, and compared. A figure that no run has is left out."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One server under one load."""

    server: str
    """A, or B for the one given with --compare."""
    url: str
    model: str
    load: LoadPattern
    runs: list[RunSummary]
    medians: dict[str, float]
    """Of FIGURES, over the runs."""


class FigureComparison(msgspec.Struct, frozen=True):
    """One figure of two servers under the same load."""

    name: str
    a: float
    """Median over A's runs."""
    b: float
    ratio: float | None
    """b / a; None when a is 0."""
    a_range: tuple[float, float]
    """Least and greatest of A's runs."""
    b_range: tuple[float, float]
    ranges_overlap: bool
    """Then the runs do not tell the servers apart; with one run each they never can."""


class Comparison(msgspec.Struct, frozen=True):
    """Two servers under the same load, measured in turns."""

    load: LoadPattern
    figures: list[FigureComparison]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole measurement."""

    schema_version: int = SCHEMA_VERSION
    shoal_version: str
    started_at: str
    """ISO 8601, UTC."""
    options: ServeBenchConfig
    calibration: Calibration | None
    """None when prompts came from a file; 1 word = 1 token and no overhead when nothing was measured."""
    results: list[LoadResult]
    comparisons: list[Comparison]
    notes: list[str]
    """What a reader should know before trusting the numbers."""

    @property
    def failed(self) -> int:
        """Failed requests in all runs."""
        return sum(run.failed for result in self.results for run in result.runs)


def load_result(server: str, url: str, model: str, load: LoadPattern, runs: list[RunSummary]) -> LoadResult:
    """A result with its medians."""
    medians = {name: statistics.median(values) for name in FIGURES if (values := _values(name, runs))}
    return LoadResult(server=server, url=url, model=model, load=load, runs=runs, medians=medians)


def compare(a: LoadResult, b: LoadResult) -> Comparison:
    """Ratios of the medians, for the figures that both have."""
    names = [name for name in a.medians if name in b.medians]
    return Comparison(a.load, [_compare_figure(name, a, b) for name in names])


def _compare_figure(name: str, a: LoadResult, b: LoadResult) -> FigureComparison:
    a_values, b_values = _values(name, a.runs), _values(name, b.runs)
    a_range, b_range = (min(a_values), max(a_values)), (min(b_values), max(b_values))
    one_run = min(len(a_values), len(b_values)) < 2
    overlap = one_run or (a_range[0] <= b_range[1] and b_range[0] <= a_range[1])
    a_median, b_median = a.medians[name], b.medians[name]
    ratio = b_median / a_median if a_median else None
    return FigureComparison(name, a_median, b_median, ratio, a_range, b_range, overlap)


def _values(name: str, runs: Sequence[RunSummary]) -> list[float]:
    figure = FIGURES[name]
    return [value for run in runs if (value := figure(run)) is not None]


def to_json(report: Report) -> bytes:
    """The report as indented JSON, UTF-8."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
