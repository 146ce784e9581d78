"""`shoal bench engine` with the demo model and next to no load: that every scenario runs, not what it measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine_config import SCENARIOS

pytestmark = pytest.mark.model

TINY = [
    "--batches=1,3",
    "--contexts=16",
    "--prompts=20",
    "--long-prompt=64",
    "--long-context=64",
    "--steps=2",
    "--repeats=1",
    "--host-work-ms=1",
    "--kv-cache-memory-bytes=300000000",
]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "deploy.cli", "bench", "engine", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_scenario_is_measured(tmp_path: Path) -> None:
    files = [f"--json={tmp_path / 'report.json'}", f"--markdown={tmp_path / 'report.md'}"]
    run = bench(*TINY, *files)
    assert run.returncode == 0, run.stderr
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert list(dict.fromkeys(figure["scenario"] for figure in report["figures"])) == list(SCENARIOS)
    names = [figure["name"] for figure in report["figures"]]
    for wanted in (
        "step, 3 rows at context 16",
        "block of 64 tokens restored",
        "3 rows, all on: share of a decode step",
    ):
        assert wanted in names
    assert all(figure["value"] > 0 for figure in report["figures"] if "beyond a usual step" not in figure["name"])
    assert (tmp_path / "report.md").read_text().count("\n| decode |") == 5
