"""`shoal bench engine`: measures an engine core in process, without HTTP, sockets or other processes.

Besides figures it is a check: a plan that the device refuses, or a request that ends with an error, ends it.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import mlx.core as mx

from benchmarks.engine_config import EngineBenchConfig, Scenario
from benchmarks.engine_driver import EngineDriver
from benchmarks.engine_orders import orders
from benchmarks.engine_report import EngineReport, Figure, Machine, figure
from benchmarks.engine_sampling import sampler
from benchmarks.engine_scenarios import DRIVEN
from engine_core.config import EngineCoreConfig
from engine_core.device import OpenedModel
from engine_core.mlx_device import open_mlx_device

MEASURED: dict[Scenario, Callable[[EngineDriver, EngineBenchConfig], Iterator[Figure]]] = {
    **DRIVEN,
    "orders": orders,
    "sampler": sampler,
}


def measure_engine(config: EngineBenchConfig, tell: Callable[[str], None]) -> EngineReport:
    """Loads the model folder `config.model` on this thread and measures it; `tell` gets lines about the progress.

    Raises ModelRefused, and ValueError for options that the model or its KV cache does not allow.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    tell(f"loading {config.model}")
    opened = _open(config)
    driver = EngineDriver(opened, config.max_num_seqs, config.seed)
    figures: list[Figure] = []
    try:
        for scenario in config.only:
            tell(f"measuring {scenario}")
            mx.reset_peak_memory()
            figures += MEASURED[scenario](driver, config)
            peak = mx.get_peak_memory() / 2**20
            figures.append(figure(scenario, "peak memory of MLX, weights included", "MiB", [peak]))
    finally:
        opened.device.close()
    return EngineReport(
        shoal_version=importlib.metadata.version("shoal"),
        started_at=started_at,
        options=config,
        model=opened.card.name,
        machine=_machine(),
        kv_capacity_tokens=opened.device.kv_capacity_tokens,
        pool_lengths=tuple(opened.device.pool_lengths),
        figures=figures,
    )


def _open(config: EngineBenchConfig) -> OpenedModel:
    engine = EngineCoreConfig(
        engines_address="inproc://none",  # nothing is connected
        model=config.model,
        max_num_seqs=config.max_num_seqs,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
    )
    return open_mlx_device(engine, lambda share, detail: None)


def _machine() -> Machine:
    preloaded = os.environ.get("LD_PRELOAD", "").split(":")
    return Machine(
        system=platform.platform(terse=True),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        mlx_version=importlib.metadata.version("mlx"),
        mlx_device=str(mx.default_device()),
        blas=next((Path(path).name for path in preloaded if "blas" in path or "mkl" in path), ""),
        blas_threads=os.environ.get("OPENBLAS_NUM_THREADS", ""),
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
