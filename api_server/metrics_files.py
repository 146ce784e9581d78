"""The directory in which the API servers of one machine share their counters.

One file per process and kind of metric, named by pid (prometheus_client's multiprocess mode). Counters of processes
that are gone stay in the sums, so that a restart does not make a counter fall; their gauges are removed. This
module does not import prometheus_client, which must not be imported before `prepare`.
"""

import contextlib
import os
import re
from pathlib import Path

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_LIVE_GAUGE = re.compile(r"gauge_live[a-z]*_(\d+)\.db")


def prepare(directory: Path) -> None:
    """Makes the directory and chooses the multiprocess mode. Call once, before prometheus_client is imported."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_gauges(directory, os.getpid())  # of an earlier process that had our pid
    os.environ[DIRECTORY_VARIABLE] = str(directory)


def remove_dead_gauges(directory: Path) -> None:
    """Removes what processes that are gone had in flight."""
    for pid in _pids_with_gauges(directory):
        if not _is_alive(pid):
            remove_gauges(directory, pid)


def remove_gauges(directory: Path, pid: int) -> None:
    """Removes the gauges of one process."""
    for path in directory.iterdir():
        match = _LIVE_GAUGE.fullmatch(path.name)
        if match is not None and int(match[1]) == pid:
            with contextlib.suppress(FileNotFoundError):  # another API server was faster
                path.unlink()


def _pids_with_gauges(directory: Path) -> set[int]:
    matches = (_LIVE_GAUGE.fullmatch(path.name) for path in directory.iterdir())
    return {int(match[1]) for match in matches if match is not None}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
