"""What can be known to be wrong before any process is started."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_server.auth import BadKeys, load_keys
from api_server.config import ApiServerConfig
from deploy.errors import StartError
from deploy.launch import SIMULATED, weight_bytes
from deploy.machine import OPENBLAS_ADVICE, OPENBLAS_MISSING, Backend, lacks_openblas, memory_bytes, mlx_backend
from engine_core.device import ModelRefused
from engine_core.sim_options import parse_sim_options

logger = logging.getLogger("shoal.supervisor")


def check_options(model: str, values: Mapping[str, Any]) -> None:
    """The API keys and the simulated device's options. Raises StartError."""
    if model.startswith(SIMULATED):
        try:
            parse_sim_options(model)
        except ModelRefused as error:
            raise StartError(f"model {error}") from error
    keys = {name: values[name] for name in ("api_key", "api_key_file", "tenants_file") if name in values}
    try:
        load_keys(ApiServerConfig(clients_address="", cluster_address="", output_address="", **keys))
    except BadKeys as error:
        raise StartError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StartError(f"API key file {keys['api_key_file']} cannot be read: {reason}") from error


def check_machine(model: str, engines: int, kv_cache_memory_bytes: int | None) -> None:
    """Warns of what will be slow with this model (a folder, or sim:...). Raises StartError for what cannot fit."""
    if model.startswith(SIMULATED):
        return
    if lacks_openblas(os.environ):
        logger.warning("OpenBLAS %s; %s", OPENBLAS_MISSING, OPENBLAS_ADVICE)
    if mlx_backend() is not Backend.CUDA:  # whose memory is the engine core's to ask for
        check_memory(kv_cache_memory_bytes, engines, weight_bytes(Path(model)), memory_bytes())


def check_memory(kv_cache_memory_bytes: int | None, engines: int, weights: int, memory: int) -> None:
    """KV caches of the size asked for fit into this machine beside the weights (all in bytes). Raises StartError."""
    if kv_cache_memory_bytes is None:
        return
    needed = engines * (kv_cache_memory_bytes + weights)
    if needed > memory:
        raise StartError(
            f"--kv-cache-memory-bytes {kv_cache_memory_bytes} for each of {engines} engine core(s), and weights of "
            f"{weights / 1e9:.1f} GB in each, make {needed / 1e9:.1f} GB; this machine has {memory / 1e9:.1f} GB"
        )
