"""Blocks hold what the rows held, own their memory, and give it back."""

import mlx.core as mx
import pytest

from engine_core import block_store
from engine_core.block_store import BlockStore
from engine_core.device import BlockId, BlockSave
from engine_core.model_runner import PlanError
from protocol.prefix_hash import BLOCK_TOKENS

KINDS = [(2, 64, mx.float32), (2, 64, mx.float32), (1, 64, mx.float32), (2, 32, mx.bfloat16), (1, 64, mx.float32)]
A, B = BlockId(7), BlockId(3)


def planes_of(kinds: list[tuple[int, int, mx.Dtype]] = KINDS, rows: int = 3, positions: int = 300) -> list[mx.array]:
    planes = [mx.random.normal((rows, heads, positions, dim)).astype(dtype) for heads, dim, dtype in kinds]
    mx.eval(planes)
    return planes


def in_use() -> int:
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


@pytest.mark.parametrize("at_once_bytes", [1, 100_000, 32_000_000])
def test_a_restored_row_has_the_very_bits_of_the_saved_one(at_once_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "RESTORED_AT_ONCE_BYTES", at_once_bytes)
    planes, store = planes_of(), BlockStore()
    store.save([BlockSave(A, 1, 0)], planes)
    store.save([BlockSave(B, 2, 64)], planes)
    expected = [mx.concatenate([p[1, :, :64], p[2, :, 64:128]], axis=1) for p in planes]
    rest = [p[0, :, 128:] + 0 for p in planes]
    mx.eval(expected, rest)
    store.restore([A, B], planes, row=0)
    assert all(mx.array_equal(p[0, :, :128], e) for p, e in zip(planes, expected, strict=True))
    assert all(mx.array_equal(p[0, :, 128:], r) for p, r in zip(planes, rest, strict=True))


@pytest.mark.parametrize("kinds", [KINDS, [(1, 64, mx.float32), (1, 32, mx.float32)]])
def test_a_block_owns_its_memory_and_no_write_to_the_row_changes_it(kinds: list[tuple[int, int, mx.Dtype]]) -> None:
    before = in_use()
    planes, store = planes_of(kinds), BlockStore()
    wanted = [plane[0, :, 64:128] + 0 for plane in planes]
    mx.eval(wanted)
    rows_and_wanted = in_use()
    store.save([BlockSave(A, 0, 64)], planes)
    assert store.nbytes == sum(h * d * t.size * BLOCK_TOKENS for h, d, t in kinds)
    assert in_use() - rows_and_wanted == pytest.approx(store.nbytes, rel=0.2)
    buffer_bytes = max(plane.nbytes for plane in planes)
    for plane in planes:
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        plane[:, :, 64:65] = 0.0
        mx.eval(plane)
        assert mx.get_peak_memory() - active < buffer_bytes / 4, "the write copied the buffer"
    store.restore([A], planes, row=1)
    assert all(mx.array_equal(p[1, :, :64], w) for p, w in zip(planes, wanted, strict=True))
    del planes, wanted, plane
    assert in_use() - before == pytest.approx(store.nbytes, rel=0.2)
    store.drop([A])
    assert in_use() - before < 1_000


def test_a_model_whose_planes_agree_has_one_array_a_block() -> None:
    planes, store = planes_of([(2, 8, mx.float32)] * 6), BlockStore()
    store.save([BlockSave(A, 0, 0)], planes)
    assert [array.shape for array in store._blocks[A]] == [(6, 2, 64, 8)]


def test_ids_that_make_no_sense_are_refused() -> None:
    planes, store = planes_of(), BlockStore()
    store.save([BlockSave(A, 0, 0)], planes)
    with pytest.raises(PlanError, match="stored already"):
        store.save([BlockSave(A, 0, 0)], planes)
    with pytest.raises(PlanError, match="not stored"):
        store.restore([A, B], planes, row=0)
    with pytest.raises(PlanError, match="not stored"):
        store.drop([B])
    assert len(store) == 1
