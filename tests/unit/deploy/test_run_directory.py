"""A run directory belongs to one living supervisor, and disappears with it."""

import os
import stat
from pathlib import Path

import pytest

from deploy.run_directory import RunDirectory, make_run_directory, remove_stale
from protocol.errors import AddressError


def test_new_directory_is_private_and_removed_with_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = RunDirectory(None)
    assert directory.path.stat().st_mode & 0o777 == 0o700
    (directory.path / "clients").touch()
    (directory.path / "outputs-api-0").touch()
    (directory.metrics / "gauge_1.db").touch()
    directory.remove()
    assert list(tmp_path.iterdir()) == []


def test_given_directory_keeps_what_is_not_shoals(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "letter.txt").touch()
    RunDirectory(tmp_path).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "letter.txt").unlink()
    RunDirectory(tmp_path).remove()
    assert tmp_path.is_dir()


def test_directory_in_use_or_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(AddressError, match="chmod 700"):
        RunDirectory(tmp_path / "open")
    first = RunDirectory(tmp_path / "own")
    with pytest.raises(AddressError, match="alive"):
        RunDirectory(tmp_path / "own")
    first.remove()
    RunDirectory(tmp_path / "own").remove()


def test_path_too_long_for_a_socket_says_what_to_do(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / ("x" * 100))
    with pytest.raises(AddressError, match="--run-dir"):
        _ = directory.clients
    directory.remove()


def test_only_directories_of_dead_supervisors_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alive = RunDirectory(None)
    dead = tmp_path / "shoal-dead"
    dead.mkdir()
    (dead / "supervisor.lock").touch()
    foreign = tmp_path / "shoal-notes"
    foreign.mkdir()
    assert remove_stale() == [dead]
    assert sorted(tmp_path.iterdir()) == sorted([alive.path, foreign])
    alive.remove()


def test_a_stale_directory_that_cannot_be_emptied_yet_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = tmp_path / "shoal-dead"
    (dead / "metrics").mkdir(parents=True)
    (dead / "clients").touch()
    (dead / "supervisor.lock").touch()
    with monkeypatch.context() as late:
        late.setattr("shutil.rmtree", lambda path, ignore_errors: None)  # a process still writes its metrics there
        assert remove_stale() == []
    assert (dead / "supervisor.lock").exists()
    assert remove_stale() == [dead]
    assert list(tmp_path.iterdir()) == []


def test_a_given_directory_that_a_killed_supervisor_made_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "run"
    killed = RunDirectory(path)
    (path / "clients").touch()
    killed._lock.close()  # as the kernel does
    second = RunDirectory(path)
    assert not (path / "clients").exists()
    second.remove()
    assert not path.exists()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_directory_is_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        given = make_run_directory(tmp_path / "run" / "shoal")
        fresh = make_run_directory(None)
    finally:
        os.umask(previous)
    assert mode_of(given) == mode_of(fresh) == 0o700
    fresh.rmdir()


def test_an_existing_private_directory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    (path / "clients").touch()
    assert make_run_directory(path) == path


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(AddressError, match="chmod 700"):
        make_run_directory(path)


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(AddressError, match=f"belongs to user {owner}"):
        make_run_directory(tmp_path)


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AddressError, match="not a directory"):
            make_run_directory(path)


def test_a_directory_that_cannot_be_made_is_named() -> None:
    with pytest.raises(AddressError, match=r"/proc/shoal cannot be made: \w+"):
        make_run_directory(Path("/proc/shoal"))
