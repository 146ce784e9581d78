"""`shoal doctor`: what this machine can do, what is missing, and what to do about it."""

import enum
import http.client
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from api_server.http_socket import BindError, bind_http_socket
from deploy.cache import cache_directory
from deploy.machine import (
    OPENBLAS_ADVICE,
    OPENBLAS_MISSING,
    Backend,
    cores,
    find_openblas,
    memory_bytes,
    mlx_backend,
    openblas_environment,
)
from deploy.run_directory import RunDirectory
from protocol.errors import AddressError

OLDEST_PYTHON = (3, 11)
ENOUGH_FILES = 1024
"""File descriptors: two for each stream, and some for each process."""
ENOUGH_MEMORY_BYTES = 4 * 2**30
ENOUGH_DISK_BYTES = 2 * 2**30
"""The demo model takes 0.6 GB, and as much again while it is made."""
SLOW_GFLOPS = 20.0
"""float32 product: below this it is the reference BLAS (2.5 on a 2-core x86 host; with OpenBLAS 178)."""
_MEASURE_LIMIT_S = 60
_ANSWER_LIMIT_S = 2
_LOOKED_AT_BYTES = 4096
_SHOAL_METRICS = b"shoal:"

_MEASUREMENT = """
import time
import mlx.core as mx
n = 512
a, b = mx.random.normal((n, n)), mx.random.normal((n, n))
mx.eval(a @ b)
best_s = float("inf")
for _ in range(3):
    start_s = time.perf_counter()
    mx.eval(a @ b)
    best_s = min(best_s, time.perf_counter() - start_s)
print(mx.__version__, mx.default_device().type.name, 2 * n**3 / best_s / 1e9)
"""


class Status(enum.StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """Works, but not as well as it could."""
    FAIL = "fail"
    """Shoal cannot serve like this."""


class Check(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    status: Status
    found: str
    advice: str = ""
    """What to do; empty when nothing is to be done."""


def run_doctor(host: str, port: int, as_json: bool) -> int:
    """Prints the report; returns 1 when a check failed."""
    checks = [check() for check in _checks(host, port)]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(checks)).decode())
    else:
        for check in checks:
            print(f"{check.status:<5}{check.name:<14}{check.found}")
            if check.advice:
                print(f"{'':<19}-> {check.advice}")
    return int(any(check.status is Status.FAIL for check in checks))


def _checks(host: str, port: int) -> list[Callable[[], Check]]:
    return [
        lambda: python_check(sys.version_info[:2], platform.python_version()),
        _platform_check,
        _mlx_check,
        lambda: openblas_check(mlx_backend(), find_openblas(), sys.platform),
        lambda: memory_check(memory_bytes(), cores()),
        lambda: file_limit_check(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        lambda: _port_check(host, port),
        _cache_check,
        _run_directory_check,
        lambda: grammar_check(_version("xgrammar"), _version("apache-tvm-ffi")),
    ]


def python_check(version: tuple[int, ...], text: str) -> Check:
    """Python is new enough."""
    if version < OLDEST_PYTHON:
        return Check("python", Status.FAIL, text, "Shoal needs Python 3.11 or newer")
    return Check("python", Status.OK, f"{text} ({sys.executable})")


def _platform_check() -> Check:
    return Check("platform", Status.OK, f"{platform.system()} {platform.release()} {platform.machine()}")


class Measurement(msgspec.Struct, frozen=True):
    """What the child process found out about MLX."""

    version: str
    device: str
    gflops: float


def _mlx_check() -> Check:
    if mlx_backend() is Backend.NONE:
        return Check("mlx", Status.FAIL, "not installed", "pip install 'shoal[engine]' (a coordinator needs no MLX)")
    plain = _measure({})
    additions = openblas_environment(os.environ)
    return mlx_check(plain, _measure(additions) if additions else None)


def _measure(additions: dict[str, str]) -> Measurement | str:
    """Runs a product of matrices in a process of its own; what it said when that failed."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _MEASUREMENT],
            env={**os.environ, **additions},
            capture_output=True,
            text=True,
            timeout=_MEASURE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no result within {_MEASURE_LIMIT_S} s"
    if child.returncode != 0:
        return child.stderr.strip().rpartition("\n")[2] or f"exit code {child.returncode}"
    version, device, gflops = child.stdout.split()
    return Measurement(version, device, float(gflops))


def mlx_check(plain: Measurement | str, with_openblas: Measurement | str | None) -> Check:
    """MLX works and is quick enough. `with_openblas` is what engine cores will have; None when they get `plain`."""
    used = plain if with_openblas is None else with_openblas
    if isinstance(used, str):
        return Check("mlx", Status.FAIL, f"does not work: {used}", "reinstall it: pip install --force-reinstall mlx")
    found = f"{used.version} on {used.device}, {used.gflops:.0f} GFLOP/s in float32"
    if isinstance(plain, Measurement) and used is not plain:
        found += f" with OpenBLAS, {plain.gflops:.1f} without"
    if used.gflops < SLOW_GFLOPS:
        return Check("mlx", Status.WARN, found, "slow: see openblas below, or another process keeps the cores busy")
    return Check("mlx", Status.OK, found)


def openblas_check(backend: Backend, library: Path | None, system: str) -> Check:
    """OpenBLAS is there where MLX's CPU build on Linux wants it."""
    if backend is not Backend.CPU or system != "linux":
        return Check("openblas", Status.OK, f"not needed ({backend.value} build of MLX)")
    if library is None:
        return Check("openblas", Status.WARN, OPENBLAS_MISSING, OPENBLAS_ADVICE)
    return Check("openblas", Status.OK, f"{library}, preloaded into engine cores")


def memory_check(memory: int, core_count: int) -> Check:
    """Enough memory for a small model."""
    found = f"{memory / 2**30:.1f} GiB, {core_count} cores"
    if memory < ENOUGH_MEMORY_BYTES:
        return Check("memory", Status.WARN, found, "the demo with two engine cores needs about 4 GiB: use --engines 1")
    return Check("memory", Status.OK, found)


def file_limit_check(soft: int, hard: int) -> Check:
    """Enough file descriptors for many streams."""
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        return Check("file limit", Status.OK, shown)
    return Check(
        "file limit", Status.WARN, f"{soft} (hard {hard})", f"raise it for many streams: ulimit -n {ENOUGH_FILES * 4}"
    )


def _port_check(host: str, port: int) -> Check:
    try:
        bind_http_socket(host, port).close()
    except (BindError, OverflowError) as error:
        return port_check(port, str(error), _is_shoal(host, port))
    return port_check(port, None, False)


def port_check(port: int, error: str | None, by_shoal: bool) -> Check:
    """Whether HTTP can be served: `error` says why not, `by_shoal`: another one is there already."""
    if error is None:
        return Check("http port", Status.OK, f"{port} is free")
    if by_shoal:
        advice = "use it, or serve beside it with another --port"
        return Check("http port", Status.WARN, f"another Shoal serves on {port}", advice)
    return Check("http port", Status.FAIL, error, "stop what listens there, or serve on another with --port")


def _is_shoal(host: str, port: int) -> bool:
    """Whether what listens there is a Shoal: its metrics, which need no API key, say so."""
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        return _SHOAL_METRICS in connection.getresponse().read(_LOOKED_AT_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _cache_check() -> Check:
    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
        status = os.statvfs(cache)
    except OSError as error:
        advice = "make it writable, or set SHOAL_CACHE_DIR"
        return Check("model cache", Status.FAIL, f"{cache}: {error.strerror}", advice)
    return cache_check(cache, status.f_bavail * status.f_frsize, any(cache.glob("models/demo-*/*")))


def cache_check(cache: Path, free_bytes: int, has_demo: bool) -> Check:
    """The cache directory has room."""
    found = f"{cache}, {free_bytes / 2**30:.1f} GiB free, demo model {'is' if has_demo else 'not yet'} there"
    if free_bytes < ENOUGH_DISK_BYTES and not has_demo:
        return Check("model cache", Status.WARN, found, "the demo model needs 2 GiB while it is made")
    return Check("model cache", Status.OK, found)


def _run_directory_check() -> Check:
    try:
        directory = RunDirectory(None)
    except (AddressError, OSError) as error:
        return Check("run directory", Status.FAIL, str(error), "set TMPDIR to a directory that can be written")
    try:
        address = directory.outputs("api-255")
    except AddressError as error:
        return Check("run directory", Status.FAIL, str(error), "set TMPDIR to a short path, or give --run-dir")
    finally:
        directory.remove()
    return Check("run directory", Status.OK, address.removeprefix("ipc://").rpartition("/")[0])


def grammar_check(xgrammar: str | None, tvm_ffi: str | None) -> Check:
    """Whether the back end for structured output is there. Everything else works without."""
    advice = "structured output is refused; make setup, or bash deploy/xgrammar.sh, installs it without torch"
    if xgrammar is None:
        return Check("grammars", Status.WARN, "xgrammar is not installed", advice)
    if tvm_ffi is None:
        return Check("grammars", Status.WARN, f"xgrammar {xgrammar}, but apache-tvm-ffi is not installed", advice)
    return Check("grammars", Status.OK, f"xgrammar {xgrammar} (torch is not used)")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
