import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_server import Script, ScriptedServer, chunk, good_stream, usage_of

from benchmarks.cli import main


def fast(body: dict[str, object]) -> Script:
    return good_stream(3, usage=usage_of(128, 3))


def truncated(body: dict[str, object]) -> Script:
    return Script([(0.0, chunk("a"))])


async def bench(server: ScriptedServer, *arguments: str) -> int:
    common = ("serve", "--url", server.url, "--no-calibrate", "--requests", "4", "--concurrency", "2")
    return await asyncio.to_thread(main, [*common, *arguments])


async def test_a_measurement_prints_a_table_and_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedServer(fast) as server:
        assert await bench(server, "--json", str(tmp_path / "report"), "--records", str(tmp_path / "records")) == 0
    printed = capsys.readouterr()
    assert "output tokens/s" in printed.out
    assert "run 1 of 1" in printed.err
    report = json.loads((tmp_path / "report").read_bytes())
    assert report["results"][0]["runs"][0]["succeeded"] == 4
    records = [json.loads(line) for line in (tmp_path / "records").read_bytes().splitlines()]
    assert [(line["server"], line["run"], line["record"]["index"]) for line in records] == [
        ("A", 0, index) for index in range(4)
    ]


async def test_failed_requests_give_exit_code_1_unless_allowed() -> None:
    async with ScriptedServer(truncated) as server:
        assert await bench(server) == 1
        assert await bench(server, "--allow-errors") == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "1"], "--rate"),
        (["--extra-body", "{"], "--extra-body"),
        (["--prompts", "/does/not/exist"], "/does/not/exist"),
        (["--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["--url", "http://not a url"], "not a url"),
        (["--url", "127.0.0.1:8000"], "--url must begin with http:// or https:// (got 127.0.0.1:8000)"),
        (["--compare", "localhost"], "--compare must begin with http"),
        (["--json", "/no/such/folder/report"], "/no/such/folder/report"),
        (["--records", "/no/such/folder/records"], "/no/such/folder/records"),
    ],
)
async def test_what_cannot_be_measured_gives_exit_code_2_and_a_reason(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedServer(fast) as server:
        assert await bench(server, *arguments) == 2
    assert complaint in capsys.readouterr().err


async def test_files_are_checked_before_anything_is_asked_of_the_server(tmp_path: Path) -> None:
    async with ScriptedServer(fast) as server:
        assert await bench(server, "--json", str(tmp_path)) == 2
        assert server.bodies == []
        assert await bench(server, "--model", "m", "--url", "http://127.0.0.1:9", "--json", str(tmp_path / "j")) == 1
        assert await bench(server, "--url", "http://127.0.0.1:9", "--json", str(tmp_path / "none")) == 2
    assert not (tmp_path / "none").exists(), "a file of a measurement that was not made"


async def test_the_table_is_printed_although_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    async with ScriptedServer(fast) as server:
        assert await bench(server, "--json", str(tmp_path / "report")) == 2
    printed = capsys.readouterr()
    assert "output tokens/s" in printed.out
    assert "No space left on device" in printed.err


def test_help_needs_no_http_client() -> None:
    code = "import sys; sys.modules['aiohttp'] = None\nfrom benchmarks.cli import main\nprint(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"
    assert "shoal[bench]" in done.stderr
