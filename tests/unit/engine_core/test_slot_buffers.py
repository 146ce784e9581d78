import mlx.core as mx
import numpy as np
import pytest

from engine_core import slot_buffers
from engine_core.device import Slot
from engine_core.slot_buffers import SlotPools
from engine_core.slot_layout import LayerLayout, StateLayout

LAYOUT = LayerLayout(heads=2, key_dim=4, value_dim=8, key_dtype=mx.float32, value_dtype=mx.float16)
LENGTHS = (16, 1024)


def filled(pool_slots: tuple[int, int], layers: int = 3) -> SlotPools:
    pools = SlotPools([LAYOUT] * layers, LENGTHS)
    pools.resize(pool_slots)
    for pool in pools.pools:
        for number, layer in enumerate(pool.layers):
            layer.keys[...] = mx.arange(layer.keys.size).reshape(layer.keys.shape) + number
            layer.values[...] = mx.ones(layer.values.shape, mx.float16)
    mx.eval(pools.arrays())
    pools.check_invariants()
    return pools


def keys(pools: SlotPools, pool: int, layer: int = 0) -> np.ndarray:
    return np.array(pools.pools[pool].layers[layer].keys)


def test_a_token_costs_what_its_keys_and_values_take() -> None:
    assert LAYOUT.bytes_per_token == 2 * (4 * 4 + 8 * 2)


def test_growth_keeps_what_was_cached_and_touches_no_other_pool() -> None:
    pools = filled((2, 3))
    before, other = keys(pools, 0), pools.pools[1].layers[0].keys
    pools.resize((5, 3))
    pools.check_invariants()
    after = keys(pools, 0)
    assert (after[:2] == before).all() and (after[2:] == 0).all()
    assert pools.pools[0].layers[0].values.dtype == mx.float16
    assert pools.pools[1].layers[0].keys is other


@pytest.mark.parametrize("pool_slots", [(4, 2), (0, 2), (4, 0), (0, 1)])
def test_what_shrinks_frees_memory_at_once_and_is_then_written_in_place(pool_slots: tuple[int, int]) -> None:
    before = mx.get_active_memory()
    pools = filled((4, 8), layers=2)
    kept = keys(pools, 1, 1)[: pool_slots[1]]
    pools.resize(pool_slots)
    pools.check_invariants()
    if pool_slots[1]:
        assert (keys(pools, 1, 1) == kept).all()
    tokens = pool_slots[0] * (LENGTHS[0] + 1) + pool_slots[1] * (LENGTHS[1] + 1)
    assert mx.get_active_memory() - before < 1.1 * tokens * 2 * LAYOUT.bytes_per_token + 10_000
    for array in pools.pools[1].planes():
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        array[:1, :, :1] = 1
        mx.eval(array)
        assert mx.get_peak_memory() - active < array.nbytes / 4


def test_no_slots_free_all_memory() -> None:
    before = mx.get_active_memory()
    pools = filled((8, 8))
    assert mx.get_active_memory() > before
    pools.resize((0, 0))
    pools.check_invariants()
    assert mx.get_active_memory() == before


def test_growth_needs_one_array_twice_and_no_more() -> None:
    pools = filled((0, 8), layers=20)
    one_buffer = pools.pools[1].layers[0].keys.nbytes
    mx.reset_peak_memory()
    pools.resize((0, 16))
    assert mx.get_peak_memory() - mx.get_active_memory() <= 2 * one_buffer
    assert mx.get_active_memory() >= sum(array.nbytes for array in pools.arrays())


def test_a_pool_that_shrinks_makes_room_for_one_that_grows() -> None:
    pools = filled((0, 8), layers=20)
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    pools.resize((256, 4))
    assert mx.get_peak_memory() - active < active / 8


@pytest.mark.parametrize(
    ("source", "target"), [(Slot(0, 1), Slot(0, 3)), (Slot(0, 2), Slot(1, 1)), (Slot(1, 0), Slot(0, 0))]
)
@pytest.mark.parametrize("at_once_bytes", [1, 10**9])
def test_a_copy_takes_the_first_tokens_and_leaves_the_rest(
    source: Slot, target: Slot, at_once_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_buffers, "COPIED_AT_ONCE_BYTES", at_once_bytes)
    pools = filled((4, 2))
    before = [keys(pools, target.pool, layer) for layer in range(3)]
    read = [keys(pools, source.pool, layer)[source.index] for layer in range(3)]
    pools.copy(source, target, 5)
    for layer in range(3):
        after = keys(pools, target.pool, layer)
        assert (after[target.index, :, :5] == read[layer][:, :5]).all()
        after[target.index, :, :5] = before[layer][target.index, :, :5]
        assert (after == before[layer]).all()


def test_a_copy_within_a_pool_copies_no_buffer() -> None:
    pools = filled((0, 32))
    one_buffer = pools.pools[1].layers[0].keys.nbytes
    for source, target in ((Slot(1, 3), Slot(1, 30)), (Slot(1, 30), Slot(1, 0))):
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        pools.copy(source, target, 100)
        assert mx.get_peak_memory() - active < one_buffer / 4


def test_a_layer_that_writes_nothing_takes_no_memory_and_grows_like_others() -> None:
    pools = SlotPools([LAYOUT, LayerLayout(0, 0, 0, mx.float32, mx.float32), (StateLayout((None,)), LAYOUT)], LENGTHS)
    for pool_slots in ((2, 1), (4, 3)):
        pools.resize(pool_slots)
        pools.check_invariants()
    pools.copy(Slot(0, 1), Slot(0, 2), 3)
    pools.copy(Slot(0, 1), Slot(1, 2), 3)
    assert len(pools.pools[0].layers) == 3 and len(pools.pools[0].planes()) == 4
