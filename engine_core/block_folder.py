"""The files of the SSD tier: one for each block, named after its hash, in a folder for each model.

    ssd_cache_dir/v1-<model>/<hash>.safetensors

The file system is the index: whoever wants a block opens the file of its name. So any number of engine cores, also of
several models, share the folder, and what one has written the others find, and so does the next start. A file comes
into being by rename, whole or not at all; one that is damaged all the same (a power cut, a bad disk) is noticed when it
is read, and removed. Nothing is flushed to the disk for that reason: what a power cut takes is computed anew.

The bound holds for the whole folder, whoever wrote it: the longest unused files go first, of whatever model, so those
of a model that is served no more go by and by. What the others have written meanwhile is looked up after each
RESCAN_SHARE of the bound, so that n engine cores may exceed it by n times that share for a while.

Measured for a block of 2.95 MB, page cache, checksum included: 2.9 ms of processor time to write, 2.3 ms to read.
1,022 tokens for the demo model after a restart: the first token in 2.2 s instead of 31 s (2 busy x86 cores; 960 of them
are read).
"""

import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from engine_core.block_file import FORMAT_VERSION, BlockFormat, DamagedBlock
from engine_core.device import BlockData
from engine_core.file_ledger import FileEntry, FileLedger, FileName
from engine_core.ssd_tier import BlockWrite, ReadBlock
from protocol.prefix_hash import BlockHash

logger = logging.getLogger("shoal.engine_core")

RESCAN_SHARE = 1 / 32
KEPT_SHARE = 0.95
"""Of the bound: so much is left when it was exceeded, so that not every write has to make room."""
ABANDONED_S = 600.0
"""A file that is not finished after this time never will be: its process was killed."""

_SUFFIX = ".safetensors"
_BLOCK_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")
_UNFINISHED = ".unfinished"
_MODEL_FOLDER = re.compile(r"v(\d+)-[0-9a-f]+")


class BlockFolder:
    """Owner of this process's view of the folder, and of what came into it and went since it was last asked."""

    def __init__(self, folder: Path, block_format: BlockFormat, max_bytes: int) -> None:
        self._folder = folder
        self._format = block_format
        self._max_bytes = max_bytes
        self._model = f"v{FORMAT_VERSION}-{block_format.model}"
        self._ledger = FileLedger(max_bytes)
        self._written_bytes = 0
        """Since the last scan."""
        self._changes: dict[BlockHash, bool] = {}
        """Blocks of this model that came (true) or went (false) since this was last asked."""
        self.damaged_total = 0

    @property
    def nbytes(self) -> int:
        """Size of the files, as far as it is known."""
        return self._ledger.nbytes

    def open(self) -> None:
        """Makes the folder, looks at what is there, and removes what is of no use to anyone. Raises OSError."""
        (self._folder / self._model).mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry in list(os.scandir(self._folder)):
            match = _MODEL_FOLDER.fullmatch(entry.name)
            if match and int(match[1]) < FORMAT_VERSION:
                shutil.rmtree(entry.path, ignore_errors=True)
        self._scan()
        self._make_room(0)

    def take_changes(self) -> tuple[list[BlockHash], list[BlockHash]]:
        """Blocks of this model that came since this was last asked and are there, and those that went and are gone."""
        changes, self._changes = self._changes, {}
        came = [block_hash for block_hash, is_there in changes.items() if is_there]
        return came, [block_hash for block_hash, is_there in changes.items() if not is_there]

    def write(self, write: BlockWrite, data: BlockData) -> None:
        """Keeps a block, if it is not there already. Raises OSError."""
        name = self._name(write.block_hash)
        path = self._folder / name
        if path.exists():
            self._use(path, name)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have removed the folder
        pieces = self._format.encode(write, data)
        nbytes = sum(len(piece) for piece in pieces)
        if self._ledger.excess(nbytes) > 0 or self._written_bytes > self._max_bytes * RESCAN_SHARE:
            self._scan()
            self._make_room(nbytes)
        try:
            _write_whole(path, pieces)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._remove_longest_unused(2 * nbytes)
            _write_whole(path, pieces)
        self._written_bytes += nbytes
        self._put(FileEntry(name, nbytes, time.time()))

    def read(self, block_hash: BlockHash, parent: BlockHash) -> ReadBlock | None:
        """The block; None where there is none, or a damaged one, which is removed. Raises OSError."""
        name = self._name(block_hash)
        path = self._folder / name
        try:
            block = self._format.decode(_content(path, self._format.most_bytes), block_hash, parent)
        except FileNotFoundError:
            self._forget(name)
            return None
        except DamagedBlock as error:
            logger.warning("a block on the SSD is dropped: %s", error)
            self.damaged_total += 1
            self._remove(name)
            return None
        self._use(path, name)
        return block

    def check_invariants(self) -> None:
        """Raises AssertionError when what would be told is not how it is."""
        self._ledger.check_invariants()
        assert all(
            (self._name(block_hash) in self._ledger) == is_there for block_hash, is_there in self._changes.items()
        )

    def _name(self, block_hash: BlockHash) -> FileName:
        return FileName(f"{self._model}/{block_hash.hex()}{_SUFFIX}")

    def _use(self, path: Path, name: FileName) -> None:
        try:
            nbytes = path.stat().st_size
            os.utime(path)
        except FileNotFoundError:  # another process has removed it meanwhile
            self._forget(name)
            return
        except OSError as error:  # a folder that can only be read serves all the same
            logger.debug("no time of use is noted: %s", error)
        self._put(FileEntry(name, nbytes, time.time()))

    def _make_room(self, nbytes: int) -> None:
        """Raises OSError when the bound would be broken all the same."""
        if self._ledger.excess(nbytes) > 0:
            kept = int(self._max_bytes * KEPT_SHARE)
            self._remove_longest_unused(self._ledger.nbytes + nbytes - kept)
        if self._ledger.excess(nbytes) > 0:
            raise OSError(errno.ENOSPC, "too much in it cannot be removed", str(self._folder))

    def _remove_longest_unused(self, nbytes: int) -> None:
        """What cannot be removed (another user's file, say) stays, and others go in its place."""
        kept_bytes = self._ledger.nbytes - nbytes
        for name in self._ledger.longest_unused_first():
            if self._ledger.nbytes <= kept_bytes:
                break
            with contextlib.suppress(OSError):
                self._remove(name)

    def _remove(self, name: FileName) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._forget(name)

    def _scan(self) -> None:
        before = {name for name in self._ledger if self._is_own(name)}
        self._ledger.replace(self._files())
        after = {name for name in self._ledger if self._is_own(name)}
        for name in after ^ before:
            self._note(name, is_there=name in after)
        self._written_bytes = 0

    def _is_own(self, name: FileName) -> bool:
        return name.startswith(f"{self._model}/")

    def _files(self) -> Iterator[FileEntry]:
        for model in os.scandir(self._folder):
            if not (model.is_dir(follow_symlinks=False) and _MODEL_FOLDER.fullmatch(model.name)):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process, or a person, has removed it meanwhile
                yield from _files_of(model)

    def _put(self, entry: FileEntry) -> None:
        if entry.name not in self._ledger:
            self._note(entry.name, is_there=True)
        self._ledger.put(entry)

    def _forget(self, name: FileName) -> None:
        if name in self._ledger and self._is_own(name):
            self._note(name, is_there=False)
        self._ledger.remove(name)

    def _note(self, name: FileName, *, is_there: bool) -> None:
        """What is undone before it was told is no change."""
        if self._changes.pop(_block_hash(name), None) is None:
            self._changes[_block_hash(name)] = is_there


def _block_hash(name: FileName) -> BlockHash:
    return BlockHash(bytes.fromhex(Path(name).stem))


def _files_of(model: "os.DirEntry[str]") -> Iterator[FileEntry]:
    """The blocks in the folder of a model; files that nobody will finish are removed. Raises OSError."""
    for entry in os.scandir(model.path):
        try:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                continue
            if _BLOCK_FILE.fullmatch(entry.name):
                yield FileEntry(FileName(f"{model.name}/{entry.name}"), status.st_size, status.st_mtime)
            elif entry.name.endswith(_UNFINISHED) and status.st_mtime < time.time() - ABANDONED_S:
                Path(entry.path).unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # another process has removed it meanwhile


def _content(path: Path, most_bytes: int) -> bytes:
    """Of a file; cut off behind `most_bytes` + 1, so that no file fills the memory. Raises OSError."""
    with path.open("rb") as file:
        return file.read(min(most_bytes, os.fstat(file.fileno()).st_size) + 1)


def _write_whole(path: Path, pieces: list[bytes | memoryview]) -> None:
    """The file is there with all of this, or not at all. Raises OSError."""
    unfinished = path.with_name(f"{path.stem}-{os.getpid()}{_UNFINISHED}")
    try:
        with open(unfinished, "wb", buffering=0, opener=_private) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
