"""Each check says how it came out and, if not well, what to do."""

import resource
from pathlib import Path

import pytest

from deploy.doctor import (
    Check,
    Measurement,
    Status,
    cache_check,
    file_limit_check,
    grammar_check,
    memory_check,
    mlx_check,
    openblas_check,
    port_check,
    python_check,
)
from deploy.machine import Backend

GIB = 2**30
FAST = Measurement("0.32", "cpu", 178.0)
SLOW = Measurement("0.32", "cpu", 2.5)


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (python_check((3, 10), "3.10.1"), Status.FAIL),
        (python_check((3, 11), "3.11.0"), Status.OK),
        (mlx_check(SLOW, FAST), Status.OK),
        (mlx_check(FAST, None), Status.OK),
        (mlx_check(SLOW, None), Status.WARN),
        (mlx_check("no module mlx", None), Status.FAIL),
        (mlx_check(SLOW, "cannot be preloaded"), Status.FAIL),
        (openblas_check(Backend.CPU, None, "linux"), Status.WARN),
        (openblas_check(Backend.CPU, Path("/lib/libopenblas.so"), "linux"), Status.OK),
        (openblas_check(Backend.METAL, None, "darwin"), Status.OK),
        (openblas_check(Backend.CUDA, None, "linux"), Status.OK),
        (memory_check(2 * GIB, 2), Status.WARN),
        (memory_check(16 * GIB, 2), Status.OK),
        (file_limit_check(256, 4096), Status.WARN),
        (file_limit_check(1024, 4096), Status.OK),
        (file_limit_check(resource.RLIM_INFINITY, resource.RLIM_INFINITY), Status.OK),
        (port_check(8000, None, False), Status.OK),
        (port_check(8000, "taken", True), Status.WARN),
        (port_check(8000, "taken", False), Status.FAIL),
        (grammar_check(None, None), Status.WARN),
        (grammar_check("0.2.9", None), Status.WARN),
        (grammar_check("0.2.9", "0.1.11"), Status.OK),
        (cache_check(Path("/c"), GIB, False), Status.WARN),
        (cache_check(Path("/c"), GIB, True), Status.OK),
    ],
)
def test_status_and_advice(check: Check, status: Status) -> None:
    assert check.status is status
    assert bool(check.advice) == (status is not Status.OK)


def test_both_figures_are_shown() -> None:
    assert "178 GFLOP/s" in mlx_check(SLOW, FAST).found
    assert "2.5 without" in mlx_check(SLOW, FAST).found
