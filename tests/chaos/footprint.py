"""What a cluster occupies on its machine: processes, sockets, file descriptors, memory."""

from pathlib import Path

import msgspec
import psutil
from shoal_process import ShoalProcess

DESCRIPTORS_MORE = 8
"""Connections to callers and to members that come and go."""
MEMORY_FACTOR = 1.5
MEMORY_MORE_BYTES = 24 * 2**20
"""A process that has served for a while holds more than one that has just started, but not without end."""


class Footprint(msgspec.Struct, frozen=True):
    """At one moment, of an idle cluster."""

    names: list[str]
    """Of the processes, by role and name."""
    sockets: list[str]
    """Files in the run directory."""
    descriptors: dict[str, int]
    """By process."""
    memory_bytes: dict[str, int]
    """By process: resident set."""

    def check_against(self, before: "Footprint") -> None:
        """Raises AssertionError when something is left over since then."""
        assert self.names == before.names, "processes"
        assert self.sockets == before.sockets, "files in the run directory"
        for name, count in self.descriptors.items():
            assert count <= before.descriptors[name] + DESCRIPTORS_MORE, f"descriptors of {name}: {self}, {before}"
        for name, size in self.memory_bytes.items():
            limit = MEMORY_FACTOR * before.memory_bytes[name] + MEMORY_MORE_BYTES
            assert size <= limit, f"memory of {name}: {self}, {before}"


def footprint(shoal: ShoalProcess, run_directory: Path) -> Footprint:
    """As it is now. The metrics files of API servers that died are not counted: counters must not fall."""
    processes = {_name(each): each for each in (psutil.Process(shoal.process.pid), *shoal.children())}
    return Footprint(
        names=sorted(_name(each) for each in (psutil.Process(shoal.process.pid), *shoal.children())),
        sockets=sorted(path.name for path in run_directory.iterdir()),
        descriptors={name: process.num_fds() for name, process in processes.items()},
        memory_bytes={name: process.memory_info().rss for name, process in processes.items()},
    )


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    role = next((word for word in words if word in ("serve", "coordinator", "engine-core", "api-server")), words[0])
    return next((word for word in words if word.startswith("--name=")), role)
