"""The supervisor's private directory: ipc sockets and metrics files; there while the supervisor lives."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from protocol.addresses import CLIENTS, CLUSTER, ENGINES, ipc_address
from protocol.errors import AddressError

_LOCK = "supervisor.lock"
_MADE_BY_SHOAL = "made by shoal\n"
"""In the lock file of a directory that was not there before."""
_METRICS = "metrics"
_CONTROL = "control"
_OUTPUTS = "outputs-"
_PREFIX = "shoal-"


class RunDirectory:
    """Owner of one run directory; holds its lock from the constructor to `remove`."""

    def __init__(self, path: Path | None) -> None:
        """Makes a new one, or takes the one given. Raises AddressError when it is in use, or open to others."""
        made_now = path is None or not path.exists()
        self.path = make_run_directory(path.absolute() if path else None)
        lock = _lock(self.path)
        if lock is None:
            raise AddressError(f"run directory {self.path} is used by a supervisor that is alive")
        self._lock = lock
        # One that a killed supervisor made, and so could not remove, is taken over together with that duty.
        self._is_ours = made_now or lock.read() == _MADE_BY_SHOAL
        if made_now:
            lock.write(_MADE_BY_SHOAL)
            lock.flush()
        self._remove_contents()
        self.metrics.mkdir(mode=0o700)

    @property
    def clients(self) -> str:
        """Address of the coordinator's clients socket. Raises AddressError (path too long for a socket)."""
        return ipc_address(self.path, CLIENTS)

    @property
    def engines(self) -> str:
        """Address of the coordinator's engines socket."""
        return ipc_address(self.path, ENGINES)

    @property
    def cluster(self) -> str:
        """Address of the published cluster state."""
        return ipc_address(self.path, CLUSTER)

    def outputs(self, name: str) -> str:
        """Address where the API server of this name receives outputs."""
        return ipc_address(self.path, _OUTPUTS + name)

    @property
    def metrics(self) -> Path:
        """Directory where the API servers keep the metrics that they sum."""
        return self.path / _METRICS

    @property
    def control(self) -> Path:
        """The socket on which the supervisor takes requests of `shoal drain`, `restart` and `scale`."""
        return control_socket(self.path)

    def remove(self) -> None:
        """Removes what a supervisor puts there, and the directory if this one made it and nothing else is in it."""
        self._remove_contents()
        (self.path / _LOCK).unlink(missing_ok=True)
        if self._is_ours:
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self._lock.close()

    def _remove_contents(self) -> None:
        # Only known names: a directory that was given may hold files that are none of ours.
        for socket in (CLIENTS, ENGINES, CLUSTER, _CONTROL, *(path.name for path in self.path.glob(_OUTPUTS + "*"))):
            (self.path / socket).unlink(missing_ok=True)
        shutil.rmtree(self.metrics, ignore_errors=True)


def control_socket(directory: Path) -> Path:
    """The control socket of the supervisor that uses this run directory."""
    return directory / _CONTROL


def make_run_directory(path: Path | None) -> Path:
    """Creates a run directory (mode 0700, ours), or checks the one given.

    Raises AddressError when `path` is no directory and cannot be made one, or others than we could get at the sockets
    in it.
    """
    if path is None:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise AddressError(f"run directory {path} is not a directory") from error
    except OSError as error:
        raise AddressError(f"run directory {path} cannot be made: {error.strerror}") from error
    status = path.stat()
    if status.st_uid != os.getuid():
        raise AddressError(f"run directory {path} belongs to user {status.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise AddressError(f"run directory {path} is open to other users: chmod 700 it")
    return path


def _lock(path: Path) -> IO[str] | None:
    """The lock file, held; None when another process holds it. The kernel lets go of it when its holder dies."""
    file = (path / _LOCK).open("a+")
    file.seek(0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def running_directories() -> list[Path]:
    """Run directories, where they are made by default, of this user's supervisors that are alive."""
    running = []
    for path in _default_directories():
        lock = _lock(path)
        if lock is None:
            running.append(path)
        else:
            lock.close()
    return running


def _default_directories() -> Iterator[Path]:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (path / _LOCK).is_file() and path.stat().st_uid == os.getuid():
            yield path


def remove_stale() -> list[Path]:
    """Removes run directories of this user's supervisors that died; returns them. Those alive hold their lock."""
    removed = []
    for path in _default_directories():
        lock = _lock(path)
        if lock is not None:
            if _remove_tree(path):
                removed.append(path)
            lock.close()
    return removed


def _remove_tree(path: Path) -> bool:
    """Removes a run directory, its lock last: what cannot be removed yet keeps the mark by which it is found again."""
    for entry in path.iterdir():
        if entry.name == _METRICS:
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _LOCK:
            with contextlib.suppress(OSError):
                entry.unlink()
    if {entry.name for entry in path.iterdir()} != {_LOCK}:
        return False  # a process that is about to end still writes there
    (path / _LOCK).unlink()
    path.rmdir()
    return True
