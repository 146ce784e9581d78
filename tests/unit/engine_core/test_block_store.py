"""Blocks hold what the rows held, own their memory, and give it back."""

import mlx.core as mx
import pytest

from engine_core import block_store
from engine_core.block_store import BlockStore, block_parts
from engine_core.device import BlockId, BlockLoad, BlockRestore, BlockSave
from engine_core.model_runner import PlanError
from engine_core.slot_layout import LayerLayout
from protocol.prefix_hash import BLOCK_TOKENS

KINDS = [(2, 64, mx.float32), (2, 64, mx.float32), (1, 64, mx.float32), (2, 32, mx.bfloat16), (1, 64, mx.float32)]
A, B = BlockId(7), BlockId(3)


def planes_of(kinds: list[tuple[int, int, mx.Dtype]] = KINDS, rows: int = 3, positions: int = 300) -> list[mx.array]:
    planes = [mx.random.normal((rows, heads, positions, dim)).astype(dtype) for heads, dim, dtype in kinds]
    mx.eval(planes)
    return planes


def layouts_of(kinds: list[tuple[int, int, mx.Dtype]]) -> list[LayerLayout]:
    """One layer for each plane, with keys alone."""
    return [LayerLayout(heads, dim, 0, dtype, dtype) for heads, dim, dtype in kinds]


def restore_of(*block_ids: BlockId, tokens: int = 0) -> BlockRestore:
    return BlockRestore(0, block_ids, tokens or len(block_ids) * BLOCK_TOKENS)


def in_use() -> int:
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


@pytest.mark.parametrize("at_once_bytes", [1, 100_000, 32_000_000])
def test_a_restored_row_has_the_very_bits_of_the_saved_one(at_once_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "RESTORED_AT_ONCE_BYTES", at_once_bytes)
    planes, store = planes_of(), BlockStore(layouts_of(KINDS))
    store.save([(BlockSave(A, 5, 0), planes, 1)])
    store.save([(BlockSave(B, 6, 64), planes, 2)])
    expected = [mx.concatenate([p[1, :, :64], p[2, :, 64:128]], axis=1) for p in planes]
    rest = [p[0, :, 128:] + 0 for p in planes]
    mx.eval(expected, rest)
    store.restore(restore_of(A, B), planes, 0)
    assert all(mx.array_equal(p[0, :, :128], e) for p, e in zip(planes, expected, strict=True))
    assert all(mx.array_equal(p[0, :, 128:], r) for p, r in zip(planes, rest, strict=True))


@pytest.mark.parametrize("kinds", [KINDS, [(1, 64, mx.float32), (1, 32, mx.float32)]])
def test_a_block_owns_its_memory_and_no_write_to_the_row_changes_it(kinds: list[tuple[int, int, mx.Dtype]]) -> None:
    before = in_use()
    planes, store = planes_of(kinds), BlockStore(layouts_of(kinds))
    wanted = [plane[0, :, 64:128] + 0 for plane in planes]
    mx.eval(wanted)
    rows_and_wanted = in_use()
    store.save([(BlockSave(A, 0, 64), planes, 0)])
    assert store.nbytes == sum(h * d * t.size * BLOCK_TOKENS for h, d, t in kinds)
    assert in_use() - rows_and_wanted == pytest.approx(store.nbytes, rel=0.2)
    buffer_bytes = max(plane.nbytes for plane in planes)
    for plane in planes:
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        plane[:, :, 64:65] = 0.0
        mx.eval(plane)
        assert mx.get_peak_memory() - active < buffer_bytes / 4, "the write copied the buffer"
    store.restore(restore_of(A), planes, 1)
    assert all(mx.array_equal(p[1, :, :64], w) for p, w in zip(planes, wanted, strict=True))
    del planes, wanted, plane
    assert in_use() - before == pytest.approx(store.nbytes, rel=0.2)
    store.drop([A])
    assert in_use() - before < 1_000


def test_a_model_whose_planes_agree_has_one_array_a_block() -> None:
    planes, store = planes_of([(2, 8, mx.float32)] * 6), BlockStore(layouts_of(KINDS))
    store.save([(BlockSave(A, 0, 0), planes, 0)])
    assert [array.shape for array in store._blocks[A]] == [(6, 2, 64, 8)]


def test_of_the_last_block_only_what_is_wanted_is_written() -> None:
    planes, store = planes_of(), BlockStore(layouts_of(KINDS))
    store.save([(BlockSave(A, 1, 0), planes, 1), (BlockSave(B, 1, 64), planes, 1)])
    wanted = [plane[1, :, :100] + 0 for plane in planes]
    rest = [plane[0, :, 100:] + 0 for plane in planes]
    mx.eval(wanted, rest)
    store.restore(restore_of(A, B, tokens=100), planes, 0)
    assert all(mx.array_equal(p[0, :, :100], w) for p, w in zip(planes, wanted, strict=True))
    assert all(mx.array_equal(p[0, :, 100:], r) for p, r in zip(planes, rest, strict=True))
    for tokens in (64, 129):
        with pytest.raises(PlanError, match="2 blocks"):
            store.restore(restore_of(A, B, tokens=tokens), planes, 0)


def test_a_block_is_read_and_loaded_again_bit_by_bit() -> None:
    planes, store = planes_of(), BlockStore(layouts_of(KINDS))
    store.save([(BlockSave(A, 1, 0), planes, 1)])
    data = store.read(A)
    assert [part.nbytes for part in store.parts] == [view.nbytes for view in data]
    assert [part.dtype for part in store.parts] == ["F32", "F32", "BF16"]
    content = [memoryview(bytes(view)) for view in data]
    store.drop([A])
    planes[0][1] = 0.0
    mx.eval(planes)
    assert [memoryview(bytes(view)) for view in data] == content, "whoever reads keeps the memory"
    expected = [plane[1, :, :64] + 0 for plane in planes[1:]]
    mx.eval(expected)
    store.load([BlockLoad(B, content)])
    store.restore(restore_of(B), planes, 2)
    assert all(mx.array_equal(p[2, :, :64], e) for p, e in zip(planes[1:], expected, strict=True))
    with pytest.raises(PlanError, match="stored already"):
        store.load([BlockLoad(B, content)])
    with pytest.raises(PlanError, match="no block of this model"):
        store.load([BlockLoad(A, content[:-1])])
    with pytest.raises(PlanError, match="not stored"):
        store.read(A)


def test_layers_that_write_nothing_are_no_part_of_a_block() -> None:
    layouts = [LayerLayout(0, 0, 0, mx.float32, mx.float32), LayerLayout(2, 8, 4, mx.float16, mx.float16)] * 3
    assert [(part.dtype, part.shape) for part in block_parts(layouts)] == [
        ("F16", (3, 2, 64, 8)),
        ("F16", (3, 2, 64, 4)),
    ]
    assert block_parts([LayerLayout(2, 8, 8, mx.uint8, mx.uint8)]) == ()


def test_ids_that_make_no_sense_are_refused() -> None:
    planes, store = planes_of(), BlockStore(layouts_of(KINDS))
    store.save([(BlockSave(A, 0, 0), planes, 0)])
    with pytest.raises(PlanError, match="stored already"):
        store.save([(BlockSave(A, 0, 0), planes, 0)])
    with pytest.raises(PlanError, match="not stored"):
        store.restore(restore_of(A, B), planes, 0)
    with pytest.raises(PlanError, match="not stored"):
        store.drop([B])
    assert len(store) == 1
