"""What `shoal bench engine` reports: figures with their spread; as a table, JSON and Markdown.

Keys are only ever added; SCHEMA_VERSION changes if one must change.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from benchmarks.engine_config import EngineBenchConfig

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1


class Figure(msgspec.Struct, frozen=True):
    """One thing measured."""

    scenario: str
    name: str
    unit: str
    value: float
    """Median of the measurements."""
    least: float
    greatest: float
    measurements: int


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    system: str
    """As platform.platform() says."""
    processor: str
    cores: int
    """That this process may use."""
    mlx_version: str
    mlx_device: str
    blas: str
    """File that is preloaded as BLAS; empty for none."""
    blas_threads: str
    """OPENBLAS_NUM_THREADS; empty: as many as there are cores."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole measurement."""

    schema_version: int = SCHEMA_VERSION
    shoal_version: str
    started_at: str
    """ISO 8601, UTC."""
    options: EngineBenchConfig
    model: str
    machine: Machine
    kv_capacity_tokens: int
    pool_lengths: Sequence[int]
    figures: list[Figure]


def figure(scenario: str, name: str, unit: str, values: Sequence[float]) -> Figure:
    """A figure of these measurements; at least one."""
    return Figure(scenario, name, unit, statistics.median(values), min(values), max(values), len(values))


def to_json(report: EngineReport) -> bytes:
    """The report as indented JSON, UTF-8."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_markdown(report: EngineReport) -> str:
    """The report as a heading, a line about the machine, and a table."""
    lines = [
        f"## {report.model}, Shoal {report.shoal_version}, {report.started_at}",
        "",
        _about(report),
        "",
        "| scenario | figure | median | least to greatest | n |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cells(each)) + " |" for each in report.figures]
    return "\n".join(lines) + "\n"


def print_report(report: EngineReport, console: "Console") -> None:
    """Writes the report to the console."""
    from rich.table import Table

    console.print(f"\n{report.model}", style="bold", markup=False)
    console.print(_about(report), style="dim", markup=False)
    table = Table("scenario", "figure")
    for heading in ("median", "least to greatest", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = ""
    for each in report.figures:
        scenario, *cells = _cells(each)
        table.add_row(scenario if scenario != before else "", *cells)
        before = scenario
    console.print(table)


def _about(report: EngineReport) -> str:
    machine = report.machine
    blas = f"{machine.blas}, {machine.blas_threads or machine.cores} threads" if machine.blas else "none preloaded"
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.system}; MLX {machine.mlx_version} on "
        f"{machine.mlx_device}; BLAS {blas}; KV cache of {report.kv_capacity_tokens} tokens, slots of "
        f"{', '.join(map(str, report.pool_lengths))}"
    )


def _cells(each: Figure) -> tuple[str, ...]:
    spread = f"{_number(each.least)} to {_number(each.greatest)}"
    return each.scenario, each.name, f"{_number(each.value)} {each.unit}", spread, str(each.measurements)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
