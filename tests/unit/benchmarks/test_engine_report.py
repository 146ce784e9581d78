import io
import json

from rich.console import Console

from benchmarks.engine_config import EngineBenchConfig
from benchmarks.engine_report import EngineReport, Machine, figure, print_report, to_json, to_markdown

REPORT = EngineReport(
    shoal_version="1",
    started_at="2026-01-02T03:04:05+00:00",
    options=EngineBenchConfig(),
    model="m",
    machine=Machine("Linux", "cpu", 2, "0.32", "Device(cpu, 0)", "libopenblas.so.0", ""),
    kv_capacity_tokens=512,
    pool_lengths=(256, 512),
    figures=[figure("decode", "step", "ms", [3.0, 1.0, 200.0]), figure("decode", "rate", "tokens/s", [5.0])],
)


def test_a_figure_is_the_median_with_its_spread() -> None:
    step = REPORT.figures[0]
    assert (step.value, step.least, step.greatest, step.measurements) == (3.0, 1.0, 200.0, 3)


def test_markdown_has_a_row_for_each_figure() -> None:
    lines = to_markdown(REPORT).splitlines()
    assert lines[0] == "## m, Shoal 1, 2026-01-02T03:04:05+00:00"
    assert "libopenblas.so.0, 2 threads" in lines[2]
    assert lines[-2:] == [
        "| decode | step | 3.00 ms | 1.00 to 200 | 3 |",
        "| decode | rate | 5.00 tokens/s | 5.00 to 5.00 | 1 |",
    ]


def test_json_has_options_machine_and_figures() -> None:
    report = json.loads(to_json(REPORT))
    assert report["schema_version"] == 1
    assert report["options"]["steps"] == 20
    assert report["machine"]["cores"] == 2
    assert report["figures"][1] == {
        "scenario": "decode",
        "name": "rate",
        "unit": "tokens/s",
        "value": 5.0,
        "least": 5.0,
        "greatest": 5.0,
        "measurements": 1,
    }


def test_the_table_names_a_scenario_once() -> None:
    console = Console(file=io.StringIO(), width=120)
    print_report(REPORT, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("decode") == 1
    assert "3.00 ms" in printed and "1.00 to 200" in printed
