"""How much memory the KV cache may take: the device's memory, the weights, the cost of a token."""

import os
from pathlib import Path

import mlx.core as mx
import msgspec

from engine_core.device import ModelRefused
from engine_core.pool_lengths import SHORTEST_SLOT

USABLE_SHARE = 0.6
"""Of the device's memory, for weights and KV cache; the rest is for activations, the system and other processes."""
FILLED_SHARE = 0.85
"""Of the device's memory, for weights, KV cache and what a step takes besides (forward_memory): where a step takes much
the KV cache gets less."""
ALLOCATOR_CACHE_SHARE = 0.05
"""Of the device's memory, that MLX may keep of freed buffers."""

_CGROUP_V2 = "memory.max"
_CGROUP_V1 = "memory.limit_in_bytes"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


class CacheCost(msgspec.Struct, frozen=True):
    """What a model's cache takes."""

    bytes_per_token: int
    largest_layer_bytes_per_token: int
    """While a cache grows, one layer is there twice."""
    bytes_per_row: int
    """Of each sequence, however long it is."""
    largest_layer_bytes_per_row: int = 0
    """While rows are added, one layer's state is there twice."""


def capacity_tokens(cost: CacheCost, budget_bytes: int, max_rows: int, spare_tokens: int = 0) -> int:
    """Most slots x length of all pools that fit in the budget, a multiple of SHORTEST_SLOT; ModelRefused when it is 0.

    A slot takes `spare_tokens` more than its length. While a pool grows or shrinks, one layer's keys or values are
    there twice; while rows are added, one layer's states are.
    """
    for_tokens = budget_bytes - max_rows * (cost.bytes_per_row + cost.largest_layer_bytes_per_row)
    slots = for_tokens // max(SHORTEST_SLOT, _slot_bytes(cost, spare_tokens))
    if slots < 1:
        raise ModelRefused(
            f"{budget_bytes} bytes of KV cache are too few for {max_rows} sequences: "
            "give more with kv_cache_memory_bytes, or lower max_num_seqs"
        )
    return slots * SHORTEST_SLOT


def checkpoint_tokens(cost: CacheCost, spare_tokens: int = 0) -> int:
    """Tokens of the capacity (see `capacity_tokens`) that take as much memory as a row's states; 0 without states."""
    return -(-cost.bytes_per_row * SHORTEST_SLOT // max(SHORTEST_SLOT, _slot_bytes(cost, spare_tokens)))


def _slot_bytes(cost: CacheCost, spare_tokens: int) -> int:
    return (SHORTEST_SLOT + spare_tokens) * (cost.bytes_per_token + cost.largest_layer_bytes_per_token)


def kv_budget_bytes(configured: int | None, memory_bytes: int, weight_bytes: int, forward_bytes: int) -> int:
    """Bytes for the KV cache. Raises ModelRefused when weights and forward leave nothing.

    `memory_bytes` is the engine core's share of the device's memory.
    """
    if configured is not None:
        return configured
    budget = min(int(memory_bytes * USABLE_SHARE), int(memory_bytes * FILLED_SHARE) - forward_bytes) - weight_bytes
    if budget <= 0:
        raise ModelRefused(
            f"the weights take {weight_bytes} bytes and a step {forward_bytes}, which leaves nothing of "
            f"{USABLE_SHARE:.0%} of this engine core's {memory_bytes} bytes for the KV cache: serve a smaller model, "
            "run fewer engine cores, lower max_num_batched_tokens, or set kv_cache_memory_bytes"
        )
    return budget


def device_memory_bytes() -> int:
    """Metal: the recommended working set. CUDA: the device's memory. CPU: RAM, or the cgroup's limit if lower."""
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory"):
        if key in info:
            return int(info[key])
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits_bytes(_OWN_CGROUPS, _CGROUP_ROOT)])


def cgroup_limits_bytes(own_cgroups: Path, root: Path) -> list[int]:
    """Memory limits of this process's cgroup and of those around it (Linux, cgroup v1 and v2); [] without any.

    `own_cgroups` is /proc/self/cgroup, with lines `<id>:<controllers>:<path>`; v2 has no controllers in its line.
    """
    if not own_cgroups.is_file():
        return []
    limits = []
    for line in own_cgroups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits_along(root, path, _CGROUP_V2)
        elif "memory" in controllers.split(","):
            limits += _limits_along(root / "memory", path, _CGROUP_V1)
    return limits


def _limits_along(root: Path, path: str, file: str) -> list[int]:
    """In a container the path may not exist below its root: then only the root's own limit is seen, and counts."""
    folder = root / path.lstrip("/")
    texts = [(place / file).read_text().strip() for place in (folder, *folder.parents) if (place / file).is_file()]
    return [int(text) for text in texts if text != "max"]


def limit_allocator_cache(memory_bytes: int) -> None:
    """Bounds what MLX keeps of freed buffers; without this it may keep as much as was ever in use."""
    mx.set_cache_limit(int(memory_bytes * ALLOCATOR_CACHE_SHARE))
