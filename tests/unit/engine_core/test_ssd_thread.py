"""The thread: reads before writes, an answer to each read, few blocks that wait, and no end because of a bad disk."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from block_samples import DATA_BYTES, FORMAT, sample_chain, sample_data, sample_write

from engine_core import ssd_thread
from engine_core.block_folder import BlockFolder
from engine_core.ssd_thread import SsdThread
from engine_core.ssd_tier import BlockRead, BlocksRead, SsdReport

Events = "queue.Queue[BlocksRead | SsdReport]"


def made(path: Path) -> tuple[SsdThread, "queue.Queue[BlocksRead | SsdReport]"]:
    events: queue.Queue[BlocksRead | SsdReport] = queue.Queue()
    return SsdThread(BlockFolder(path, FORMAT, 10**6), events.put), events


@contextmanager
def running(ssd: SsdThread) -> Iterator[None]:
    thread = threading.Thread(target=ssd.run)
    thread.start()
    try:
        yield
    finally:
        ssd.close()
        thread.join(10)
        assert not thread.is_alive()


def read_of(name: int, blocks: int) -> BlockRead:
    chain, _ = sample_chain(name, blocks)
    return BlockRead(chain[0], chain[1:], 1)


def until_read(events: "queue.Queue[BlocksRead | SsdReport]") -> BlocksRead:
    while True:
        event = events.get(timeout=10)
        if isinstance(event, BlocksRead):
            return event


def test_what_is_written_is_read_as_far_as_the_chain_goes(tmp_path: Path) -> None:
    ssd, events = made(tmp_path)
    for place in (1, 2, 4):
        ssd.write(sample_write(1, place), sample_data(place))
    with running(ssd):
        assert events.get(timeout=10) == SsdReport([], [], 0, 0, 0, 0)
        report = events.get(timeout=10)
        assert isinstance(report, SsdReport) and report.written_total == len(report.added) == 3
        ssd.read(read_of(1, 4))
        done = until_read(events)
        assert [bytes(block.data[0]) for block in done.blocks] == [bytes(sample_data(place)[0]) for place in (1, 2)]
        ssd.read(read_of(5, 2))
        assert until_read(events).blocks == []


def test_reads_go_before_writes(tmp_path: Path) -> None:
    ssd, events = made(tmp_path)
    ssd.write(sample_write(1), sample_data(1))
    ssd.read(read_of(1, 1))
    with running(ssd):
        assert until_read(events).blocks == [], "it is not written yet"


def test_what_comes_while_too_much_waits_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssd_thread, "MAX_UNWRITTEN_BYTES", 2 * DATA_BYTES)
    ssd, events = made(tmp_path)
    for name in range(5):
        ssd.write(sample_write(name), sample_data(name))
    with running(ssd):
        events.get(timeout=10)
        report = events.get(timeout=10)
        assert isinstance(report, SsdReport) and (report.written_total, report.skipped_total) == (2, 3)
        ssd.write(sample_write(9), sample_data(9))
        report = events.get(timeout=10)
        assert isinstance(report, SsdReport) and (report.written_total, report.skipped_total) == (3, 3)


def test_a_disk_that_does_not_work_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    ssd, events = made(tmp_path / "file" / "cache")
    for name in range(3):
        ssd.write(sample_write(name), sample_data(name))
    ssd.read(read_of(1, 1))
    with running(ssd):
        assert until_read(events).blocks == []
        report = events.get(timeout=10)
        assert isinstance(report, SsdReport) and (report.written_total, report.skipped_total) == (0, 3)
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, not for each block"


def test_the_end_does_not_wait_for_what_is_not_written(tmp_path: Path) -> None:
    ssd, _ = made(tmp_path)
    for name in range(50):
        ssd.write(sample_write(name), sample_data(name))
    ssd.close()
    ssd.run()
    assert list(tmp_path.rglob("*.safetensors")) == []
