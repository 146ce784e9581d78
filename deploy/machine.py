"""What this machine has: MLX's back end, OpenBLAS, memory, cores. Looked up without importing MLX."""

import enum
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


class Backend(enum.Enum):
    """Which build of MLX is installed."""

    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"
    NONE = "none"


def mlx_backend() -> Backend:
    """From the installed distributions: MLX's device code comes in one of its own."""
    names = {str(d.metadata["Name"]).lower() for d in importlib.metadata.distributions()}
    if "mlx" not in names:
        return Backend.NONE
    if "mlx-metal" in names:
        return Backend.METAL
    return Backend.CUDA if any(name.startswith("mlx-cuda") for name in names) else Backend.CPU


# --- OpenBLAS ------------------------------------------------------------------------------------------------

OPENBLAS_MISSING = "not found: float32 products take about 70 times as long"
OPENBLAS_ADVICE = "apt-get install libopenblas0-pthread, dnf install openblas-threads, or pacman -S openblas"
PRELOAD = "LD_PRELOAD"
_LIBRARY = re.compile(r"libopenblas(?P<kind>p?)\S*\.so\.0 \((?P<abi>[^)]*)\) => (?P<path>\S+)")
_ABIS = {"x86_64": "x86-64", "aarch64": "AArch64"}
_KNOWN_PLACES = (
    "/usr/lib/{machine}-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib64/libopenblas.so.0",
    "/usr/lib/libopenblas.so",
)
"""Debian and Ubuntu, Fedora (p: with threads) and its older releases, Arch. Others are found through ldconfig."""


def find_openblas() -> Path | None:
    """The OpenBLAS library of this machine's own architecture, one with threads if it can be, or None."""
    machine = os.uname().machine
    for place in _KNOWN_PLACES:
        if (path := Path(place.format(machine=machine))).exists():
            return path
    return openblas_of_ldconfig(_ldconfig_listing(), machine)


def _ldconfig_listing() -> str:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            return subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    return ""


def openblas_of_ldconfig(listing: str, machine: str, exists: Callable[[Path], bool] = Path.exists) -> Path | None:
    """OpenBLAS in the output of `ldconfig -p` for this machine type (`uname -m`); one with threads if it can be.

    The listing is a cache: a library that was removed stays in it until ldconfig runs again.
    """
    abi = _ABIS.get(machine, machine)
    found = [match for match in _LIBRARY.finditer(listing) if abi in match["abi"] and exists(Path(match["path"]))]
    found.sort(key=lambda match: match["kind"] != "p")
    return Path(found[0]["path"]) if found else None


def openblas_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to an engine core's environment so that MLX's CPU build uses OpenBLAS; empty when nothing.

    MLX's Linux wheel links the reference BLAS; on a 2-core x86 host preloading OpenBLAS took a float32 product
    of 512 x 512 from 2.5 to 178 GFLOP/s. An LD_PRELOAD that names a BLAS already is left alone.
    """
    preloaded = environment.get(PRELOAD, "")
    library = find_openblas() if _wants_openblas(preloaded) else None
    if library is None:
        return {}
    return {PRELOAD: f"{library}:{preloaded}" if preloaded else str(library)}


def lacks_openblas(environment: Mapping[str, str]) -> bool:
    """Whether engine cores will be slow for want of OpenBLAS."""
    return _wants_openblas(environment.get(PRELOAD, "")) and find_openblas() is None


def _wants_openblas(preloaded: str) -> bool:
    if sys.platform != "linux" or "blas" in preloaded or "libmkl" in preloaded:
        return False
    return mlx_backend() is Backend.CPU


# --- memory and cores ----------------------------------------------------------------------------------------

_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Physical memory, or the limit of this process's control group where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    own = Path("/proc/self/cgroup")
    return min([physical, *cgroup_limits(_CGROUPS, own.read_text() if own.exists() else "")])


def cgroup_limits(root: Path, own_groups: str) -> list[int]:
    """Memory limits (bytes) that hold for a process with this /proc/self/cgroup: of its group and all above it.

    Version 2 has one line `0::/path`. In a container that path may not exist; the root then has the limit.
    """
    places = [root, root / "memory"]
    for line in own_groups.splitlines():
        if line.startswith("0::/"):
            group = root / line.removeprefix("0::/")
            places += [place for place in (group, *group.parents) if place.is_relative_to(root)]
    files = [place / name for place in places for name in ("memory.max", "memory.limit_in_bytes")]
    return [int(text) for file in files if file.is_file() and (text := file.read_text().strip()).isdigit()]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def main() -> int:
    """Prints openblas_environment as NAME=VALUE for scripts; returns 1 when OpenBLAS is wanted and missing."""
    for name, value in openblas_environment(os.environ).items():
        print(f"{name}={value}")
    return int(sys.platform == "linux" and mlx_backend() is Backend.CPU and find_openblas() is None)


if __name__ == "__main__":
    sys.exit(main())
