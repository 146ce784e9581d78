"""Where Shoal keeps what it fetched: one cache directory per user, changed by one process at a time."""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

CACHE_VARIABLE = "SHOAL_CACHE_DIR"
_LOCK = ".lock"
_UNFINISHED = ".unfinished-"


def cache_directory(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """$SHOAL_CACHE_DIR, else $XDG_CACHE_HOME/shoal, else ~/Library/Caches/shoal (macOS) or ~/.cache/shoal."""
    if own := environment.get(CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg) / "shoal"
    return Path.home() / ("Library/Caches" if platform == "darwin" else ".cache") / "shoal"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; waits for a process that holds it. A process that dies lets go of it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def unfinished_directory(directory: Path) -> Iterator[Path]:
    """A new directory to build something in, beside its destination; gone at the end unless it was renamed.

    Call with the lock held: leftovers of processes that died in the middle are removed first.
    """
    for leftover in directory.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)
    path = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
