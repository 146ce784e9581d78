"""Real files: kept over restarts, shared, bounded, and never wrong."""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from block_samples import DATA_BYTES, FORMAT, PARTS, sample_data, sample_write

from engine_core import block_folder
from engine_core.block_file import BlockFormat
from engine_core.block_folder import BlockFolder
from engine_core.ssd_tier import BlockWrite

FILE_BYTES = sum(len(piece) for piece in FORMAT.encode(sample_write(1), sample_data(1)))
"""Of each block's file."""


def opened(path: Path, files: float = 100, block_format: BlockFormat = FORMAT) -> BlockFolder:
    folder = BlockFolder(path, block_format, int(files * FILE_BYTES))
    folder.open()
    return folder


def has(folder: BlockFolder, write: BlockWrite, seed: int) -> bool:
    block = folder.read(write.block_hash, write.parent)
    folder.check_invariants()
    assert block is None or [bytes(array) for array in block.data] == [bytes(array) for array in sample_data(seed)]
    return block is not None


def files_in(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def set_used(path: Path, write: BlockWrite, used_s: float) -> None:
    (file,) = path.rglob(f"{write.block_hash.hex()}.safetensors")
    os.utime(file, (used_s, used_s))


def test_what_was_written_is_there_after_a_restart_and_for_others(tmp_path: Path) -> None:
    first, write = opened(tmp_path), sample_write(1)
    assert not has(first, write, 1)
    beside = opened(tmp_path)
    first.write(write, sample_data(1))
    assert has(first, write, 1) and has(beside, write, 1)
    assert first.take_changes() == beside.take_changes() == ([write.block_hash], [])
    after = opened(tmp_path)
    assert after.take_changes() == ([write.block_hash], [])
    assert has(after, write, 1)
    assert after.nbytes == first.nbytes == files_in(tmp_path)[0].stat().st_size


def test_only_its_owner_can_read_a_file(tmp_path: Path) -> None:
    opened(tmp_path / "new").write(sample_write(1), sample_data(1))
    (file,) = files_in(tmp_path)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_another_model_shares_the_folder_but_no_block(tmp_path: Path) -> None:
    write = sample_write(1)
    opened(tmp_path).write(write, sample_data(1))
    other = opened(tmp_path, block_format=BlockFormat("99", PARTS))
    assert not has(other, write, 1)
    assert other.take_changes() == ([], [])
    assert other.nbytes > 0, "the bound is for all"
    assert has(opened(tmp_path), write, 1)


def test_files_of_an_older_format_are_removed(tmp_path: Path) -> None:
    for name in ("v0-aa", "v99-aa", "photos"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    opened(tmp_path)
    assert sorted(file.parent.name for file in files_in(tmp_path)) == ["photos", "v99-aa"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-100] + bytes(100),
        lambda content: content + b"x",
        lambda content: bytes(len(content)),
    ],
)
def test_a_damaged_file_is_dropped_and_counted(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder, write = opened(tmp_path), sample_write(1)
    folder.write(write, sample_data(1))
    folder.take_changes()
    (file,) = files_in(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert folder.read(write.block_hash, write.parent) is None
    assert (folder.damaged_total, folder.nbytes, files_in(tmp_path)) == (1, 0, [])
    assert folder.take_changes() == ([], [write.block_hash])
    folder.write(write, sample_data(1))
    assert has(folder, write, 1)


def test_the_longest_unused_go_when_there_are_too_many(tmp_path: Path) -> None:
    folder, writes = opened(tmp_path, files=6.5), [sample_write(name) for name in range(8)]
    for number, write in enumerate(writes[:6]):
        folder.write(write, sample_data(number))
        set_used(tmp_path, write, 1_000.0 + number)
    folder = opened(tmp_path, files=6.5)
    folder.take_changes()
    assert has(folder, writes[0], 0), "it is used now"
    folder.write(writes[6], sample_data(6))
    assert len(files_in(tmp_path)) == 6
    assert [has(folder, write, number) for number, write in enumerate(writes[:7])] == [True, False] + [True] * 5
    assert folder.nbytes == sum(file.stat().st_size for file in files_in(tmp_path))
    assert folder.take_changes() == ([writes[6].block_hash], [writes[1].block_hash])


def test_what_others_wrote_counts(tmp_path: Path) -> None:
    mine, other = opened(tmp_path, files=20.5), opened(tmp_path, files=20.5)
    for name in range(100):
        (mine, other)[name % 2].write(sample_write(name), sample_data(name))
        assert len(files_in(tmp_path)) <= 20 + 2, "the bound, and what one process has not seen yet of the other"
    assert len(files_in(tmp_path)) >= 18


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for name in range(10):
        folder.write(sample_write(name), sample_data(name))
    opened(tmp_path, files=4.5)
    assert len(files_in(tmp_path)) == 4


def test_a_file_that_another_process_removed_is_missed_without_harm(tmp_path: Path) -> None:
    folder, write = opened(tmp_path), sample_write(1)
    folder.write(write, sample_data(1))
    folder.take_changes()
    files_in(tmp_path)[0].unlink()
    assert folder.read(write.block_hash, write.parent) is None
    assert folder.take_changes() == ([], [write.block_hash])
    assert (folder.damaged_total, folder.nbytes) == (0, 0)


def test_a_folder_that_was_emptied_is_filled_again(tmp_path: Path) -> None:
    folder = opened(tmp_path / "cache")
    folder.write(sample_write(1), sample_data(1))
    subprocess.run(["rm", "-r", str(tmp_path / "cache")], check=True)
    folder.write(sample_write(2), sample_data(2))
    assert has(folder, sample_write(2), 2)


def test_a_full_disk_makes_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(tmp_path)
    for name in range(5):
        folder.write(sample_write(name), sample_data(name))
        set_used(tmp_path, sample_write(name), 1_000.0 + name)
    folder = opened(tmp_path)
    room = 5 * FILE_BYTES

    real = block_folder._write_whole

    def write_whole(path: Path, pieces: list[bytes | memoryview]) -> None:
        """As on a disk with room for five."""
        real(path, pieces)
        if sum(file.stat().st_size for file in files_in(tmp_path)) > room:
            path.unlink()
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(block_folder, "_write_whole", write_whole)
    folder.write(sample_write(7), sample_data(7))
    assert [has(folder, sample_write(name), name) for name in (0, 1, 2, 3, 4, 7)] == [False, False, *[True] * 4]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a small file system in a name space of its own")
def test_a_disk_that_is_really_full_leaves_no_half_a_file(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from block_samples import FORMAT, sample_data, sample_write
from engine_core.block_folder import BlockFolder
path = Path({str(tmp_path)!r})
folder = BlockFolder(path, FORMAT, 1_000_000)
folder.open()
for name in range(40):
    folder.write(sample_write(name), sample_data(name))
(path / "other").write_bytes(b"")
try:
    with open(path / "other", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
for file in list(path.rglob("*.safetensors")):
    file.unlink()
    with open(path / "other", "ab", buffering=0) as other:
        try:
            other.write(bytes(8192))
        except OSError:
            pass
try:
    folder.write(sample_write(99), sample_data(99))
except OSError as error:
    print("errno", error.errno)
print(sorted(file.suffix for file in path.rglob("*") if file.is_file()))
"""
    mounted = f'mount -t tmpfs -o size=128k none "{tmp_path}" && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mounted, sys.executable, script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no name space: {done.stderr.strip()}")
    assert done.stdout.split("\n")[:2] == [f"errno {errno.ENOSPC}", "['']"], done.stderr


def test_a_write_that_was_killed_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
import os, signal
from pathlib import Path
from block_samples import FORMAT, sample_data, sample_write
from engine_core.block_folder import BlockFolder
folder = BlockFolder(Path({str(tmp_path)!r}), FORMAT, 10**9)
folder.open()
pieces = FORMAT.encode(sample_write(1), sample_data(1))
class Killed:
    def encode(self, write, data):
        yield from pieces[:-1]
        os.kill(os.getpid(), signal.SIGKILL)
from engine_core import block_folder
block_folder._write_whole(folder._folder / folder._name(sample_write(1).block_hash), Killed().encode(None, None))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60)
    assert done.returncode == -9
    (unfinished,) = files_in(tmp_path)
    assert unfinished.stat().st_size > DATA_BYTES / 2
    folder = opened(tmp_path)
    assert not has(folder, sample_write(1), 1)
    assert folder.take_changes() == ([], [])
    assert unfinished.exists(), "a process that lives may be writing it"
    os.utime(unfinished, (time.time() - 3_600,) * 2)
    opened(tmp_path)
    assert files_in(tmp_path) == []


def test_two_processes_at_once_write_and_read_the_same_blocks(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from block_samples import FORMAT, sample_data, sample_write
from engine_core.block_folder import BlockFolder
folder = BlockFolder(Path({str(tmp_path)!r}), FORMAT, {12 * FILE_BYTES})
folder.open()
for turn in range(20):
    for name in range(20):
        folder.write(sample_write(name), sample_data(name))
        other = (name * 7 + turn) % 20
        block = folder.read(sample_write(other).block_hash, sample_write(other).parent)
        assert block is None or bytes(block.data[0]) == sample_data(other)[0]
assert folder.damaged_total == 0
"""
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(files_in(tmp_path)) <= 12 + 2


def test_a_full_folder_that_was_removed_while_it_was_in_use_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    folder = opened(path, files=4)
    for name in range(1, 6):
        folder.write(sample_write(name), sample_data(name))
    shutil.rmtree(path)
    for name in range(11, 16):
        folder.write(sample_write(name), sample_data(name))
    assert has(folder, sample_write(15), 15)
    assert folder.nbytes == sum(file.stat().st_size for file in files_in(path)) <= 4 * FILE_BYTES


def test_a_file_of_any_size_in_a_blocks_place_is_read_no_further_than_a_block_could_go(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.write(sample_write(1), sample_data(1))
    (file,) = files_in(tmp_path)
    os.truncate(file, 2**42)  # sparse: nothing on the disk, and more than any memory
    assert not has(folder, sample_write(1), 1)
    assert (folder.damaged_total, files_in(tmp_path)) == (1, [])


def test_what_cannot_be_removed_makes_others_go_and_never_breaks_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(tmp_path, files=4)
    for name in range(1, 5):
        folder.write(sample_write(name), sample_data(name))
        set_used(tmp_path, sample_write(name), name)
    stuck = {f"{sample_write(name).block_hash.hex()}.safetensors" for name in (1, 2)}
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name in stuck:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    folder = opened(tmp_path, files=4)
    folder.write(sample_write(5), sample_data(5))
    assert [has(folder, sample_write(name), name) for name in range(1, 6)] == [True, True, False, False, True]
    folder.write(sample_write(6), sample_data(6))
    stuck |= {file.name for file in files_in(tmp_path)}
    with pytest.raises(OSError, match="cannot be removed"):
        folder.write(sample_write(7), sample_data(7))
    assert len(files_in(tmp_path)) == 4


def test_what_is_no_file_is_no_block_and_takes_no_room(tmp_path: Path) -> None:
    folder = opened(tmp_path, files=3)
    folder.write(sample_write(1), sample_data(1))
    (file,) = files_in(tmp_path)
    (file.parent / f"{'ab' * 32}.safetensors").mkdir()
    after = opened(tmp_path, files=3)
    assert (after.nbytes, after.take_changes()) == (FILE_BYTES, ([sample_write(1).block_hash], []))


def test_blocks_of_a_model_whose_name_begins_alike_are_not_told_as_ones_own(tmp_path: Path) -> None:
    longer = BlockFormat(f"{FORMAT.model}ef", PARTS)
    opened(tmp_path, block_format=longer).write(sample_write(1), sample_data(1))
    assert opened(tmp_path).take_changes() == ([], [])


def test_blocks_in_a_folder_that_can_only_be_read_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).write(sample_write(1), sample_data(1))

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "utime", refuse)
    folder = opened(tmp_path)
    assert has(folder, sample_write(1), 1)
    assert folder.nbytes == FILE_BYTES


def test_what_came_and_went_between_two_reports_is_in_none(tmp_path: Path) -> None:
    folder, writes = opened(tmp_path, files=2.5), [sample_write(name) for name in range(4)]
    for number, write in enumerate(writes):
        folder.write(write, sample_data(number))
        set_used(tmp_path, write, 1_000.0 + number)
    added, removed = folder.take_changes()
    assert removed == []
    assert added == [write.block_hash for number, write in enumerate(writes) if has(folder, write, number)]
