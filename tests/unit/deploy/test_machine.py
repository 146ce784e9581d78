"""What a machine has is told apart without asking MLX."""

from pathlib import Path

import pytest

from deploy.machine import (
    Backend,
    cgroup_limits,
    lacks_openblas,
    openblas_environment,
    openblas_of_ldconfig,
)

LISTING = """\
	libopenblas.so.0 (libc6) => /lib/i386-linux-gnu/libopenblas.so.0
	libopenblas.so.0 (libc6,x86-64) => /lib/x86_64-linux-gnu/libopenblas.so.0
	libopenblasp.so.0 (libc6,x86-64) => /lib64/libopenblasp.so.0
	libblas.so.3 (libc6,x86-64) => /lib/x86_64-linux-gnu/libblas.so.3
	libopenblas.so.0 (libc6,AArch64) => /lib/aarch64-linux-gnu/libopenblas.so.0
"""


@pytest.mark.parametrize(
    ("machine", "path"),
    [("x86_64", "/lib64/libopenblasp.so.0"), ("aarch64", "/lib/aarch64-linux-gnu/libopenblas.so.0"), ("riscv64", None)],
)
def test_library_of_the_right_architecture_is_chosen_and_threads_preferred(machine: str, path: str | None) -> None:
    assert openblas_of_ldconfig(LISTING, machine, lambda path: True) == (Path(path) if path else None)


def test_library_that_is_listed_but_removed_is_passed_over() -> None:
    def exists(path: Path) -> bool:
        return path != Path("/lib64/libopenblasp.so.0")

    assert openblas_of_ldconfig(LISTING, "x86_64", exists) == Path("/lib/x86_64-linux-gnu/libopenblas.so.0")
    assert openblas_of_ldconfig(LISTING.replace("/lib", "/removed"), "x86_64") is None


@pytest.mark.parametrize(
    ("library", "preloaded", "lacks"),
    [(None, "", True), (Path("/lib/libopenblas.so.0"), "", False), (None, "/opt/libblas.so", False)],
)
def test_openblas_is_missed_only_where_nothing_stands_in_for_it(
    library: Path | None, preloaded: str, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("deploy.machine.mlx_backend", lambda: Backend.CPU)
    monkeypatch.setattr("deploy.machine.find_openblas", lambda: library)
    assert lacks_openblas({"LD_PRELOAD": preloaded}) is lacks


def test_a_blas_that_is_preloaded_already_is_left_alone() -> None:
    assert openblas_environment({"LD_PRELOAD": "/opt/libblis.so:/opt/libopenblas.so"}) == {}


def test_memory_limits_of_the_own_group_and_those_above(tmp_path: Path) -> None:
    group = tmp_path / "system.slice" / "shoal.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("3000\n")
    (tmp_path / "memory.max").write_text("5000\n")
    assert sorted(cgroup_limits(tmp_path, "0::/system.slice/shoal.service\n")) == [3000, 5000, 5000]
    assert cgroup_limits(tmp_path / "none", "") == []


def test_first_version_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4000\n")
    assert cgroup_limits(tmp_path, "") == [4000]
