from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.device import ModelRefused
from engine_core.device_memory import (
    CacheCost,
    capacity_tokens,
    cgroup_limits_bytes,
    device_memory_bytes,
    kv_budget_bytes,
    limit_allocator_cache,
)

GIB = 1 << 30


@given(st.integers(1, 10**6), st.integers(1, 80), st.integers(0, 10**6), st.integers(1, 300), st.integers(0, 10**13))
def test_capacity_keeps_the_budget_with_one_layer_twice(
    layer_bytes: int, layers: int, row_bytes: int, rows: int, budget: int
) -> None:
    cost = CacheCost(layers * layer_bytes, layer_bytes, row_bytes)
    try:
        tokens = capacity_tokens(cost, budget, rows)
    except ModelRefused:
        assert (layers + 1) * layer_bytes * 256 + row_bytes * rows > budget
        return
    assert tokens % 256 == 0 and tokens > 0
    assert (layers + 1) * layer_bytes * tokens + row_bytes * rows <= budget
    assert (layers + 1) * layer_bytes * (tokens + 256) + row_bytes * rows > budget


def test_each_slot_takes_its_spare_token() -> None:
    cost = CacheCost(bytes_per_token=10, largest_layer_bytes_per_token=2, bytes_per_row=0)
    assert capacity_tokens(cost, 3 * 257 * 12, 4, spare_tokens=1) == 3 * 256
    assert capacity_tokens(cost, 3 * 257 * 12 - 1, 4, spare_tokens=1) == 2 * 256


def test_a_model_without_a_kv_cache_is_bounded_by_its_rows() -> None:
    assert capacity_tokens(CacheCost(0, 0, 1000), 10**9, 64) > 10**8
    with pytest.raises(ModelRefused, match="max_num_seqs"):
        capacity_tokens(CacheCost(0, 0, 10**8), 10**9, 64)


def test_one_layer_of_state_has_room_twice() -> None:
    cost = CacheCost(1, 0, bytes_per_row=1000, largest_layer_bytes_per_row=250)
    assert capacity_tokens(cost, 64 * 1250 + 256, 64) == 256
    with pytest.raises(ModelRefused):
        capacity_tokens(cost, 64 * 1250 + 255, 64)


def test_the_budget_is_what_the_weights_leave_of_sixty_percent() -> None:
    assert kv_budget_bytes(None, 100 * GIB, 20 * GIB, 1 * GIB) == 40 * GIB
    assert kv_budget_bytes(5, 100 * GIB, 20 * GIB, 1 * GIB) == 5
    with pytest.raises(ModelRefused, match="smaller model"):
        kv_budget_bytes(None, 10 * GIB, 6 * GIB, 0)


def test_a_step_that_takes_much_takes_it_from_the_budget() -> None:
    assert kv_budget_bytes(None, 100 * GIB, 20 * GIB, 25 * GIB) == 40 * GIB
    assert kv_budget_bytes(None, 100 * GIB, 20 * GIB, 30 * GIB) == 35 * GIB
    with pytest.raises(ModelRefused, match="max_num_batched_tokens"):
        kv_budget_bytes(None, 100 * GIB, 20 * GIB, 65 * GIB)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{GIB}\n"}, [GIB]),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, [GIB]),
        ("0::/not/seen/from/inside\n", {"memory.max": f"{GIB}\n"}, [GIB]),
        ("5:cpu:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": f"{2 * GIB}\n"}, [2 * GIB]),
        ("0::/a\n", {}, []),
    ],
)
def test_cgroup_limits_are_found(tmp_path: Path, own: str, files: dict[str, str], expected: list[int]) -> None:
    write(tmp_path / "self", own)
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    assert cgroup_limits_bytes(tmp_path / "self", tmp_path / "root") == expected


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_limits_bytes(tmp_path / "none", tmp_path) == []


def test_this_machine_has_memory() -> None:
    assert GIB // 4 < device_memory_bytes() < 1 << 50


def test_freed_buffers_are_kept_up_to_a_limit() -> None:
    limit_allocator_cache(20 * 1_000_000)
    previous = mx.set_cache_limit(1 << 40)
    assert previous == 1_000_000
