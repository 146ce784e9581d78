"""Which files a bounded folder has, and which of them go when it is too large. Pure."""

from collections.abc import Iterable, Iterator
from typing import NewType

import msgspec

FileName = NewType("FileName", str)
"""Relative to the folder."""


class FileEntry(msgspec.Struct, frozen=True):
    """As the file system tells it."""

    name: FileName
    nbytes: int
    used_s: float
    """Wall clock, seconds: when it was last written or read."""


class FileLedger:
    """Owner of what is known of the folder. Others use the folder too: `replace` tells what it is really like."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[FileName, FileEntry] = {}
        self._nbytes = 0

    def __contains__(self, name: FileName) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[FileName]:
        return iter(self._entries)

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return self._nbytes

    def replace(self, entries: Iterable[FileEntry]) -> None:
        """These are the files, and no others."""
        self._entries = {entry.name: entry for entry in entries}
        self._nbytes = sum(entry.nbytes for entry in self._entries.values())

    def put(self, entry: FileEntry) -> None:
        """A file was written or used."""
        self.remove(entry.name)
        self._entries[entry.name] = entry
        self._nbytes += entry.nbytes

    def remove(self, name: FileName) -> None:
        """A file is gone; nothing happens for one that is not known."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._nbytes -= entry.nbytes

    def excess(self, needed_bytes: int) -> int:
        """By how much the folder would be too large with so many bytes more; not above 0 where it would not."""
        return self._nbytes + needed_bytes - self._max_bytes

    def longest_unused_first(self) -> list[FileName]:
        """All files; those first that were not used for the longest."""
        return [entry.name for entry in sorted(self._entries.values(), key=lambda entry: (entry.used_s, entry.name))]

    def check_invariants(self) -> None:
        """Raises AssertionError when the sum is wrong."""
        assert self._nbytes == sum(entry.nbytes for entry in self._entries.values())
