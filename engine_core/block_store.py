"""The stored blocks of the prefix cache: KV of 64 tokens of all layers, in memory of its own, in RAM.

A block is one array for each kind of plane, [planes of that kind, heads, 64, dim]: a plane is the keys or the values
of one layer, and a kind is its heads, dim and dtype, so that most models have one array a block. (Few large arrays:
Metal has a limit of 499,000.) What is saved is copied and evaluated at once: a slice of a slot buffer that waited, or
stayed, would turn each later write into a copy of the whole buffer.

Measured (15 blocks of 30 layers x 3 heads x 64, 2 CPU cores): 2.2 ms to save a block, 2.8 ms to restore one in a run.
To restore all planes at once was no faster than plane by plane, and took 25 MB beside the blocks instead of 1.5.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import BlockData, BlockId, BlockLoad, BlockPart, BlockRestore, BlockSave
from engine_core.model_runner import PlanError
from engine_core.slot_buffers import copied
from engine_core.slot_layout import CacheLayout, LayerLayout, flat_layouts
from protocol.prefix_hash import BLOCK_TOKENS

RESTORED_AT_ONCE_BYTES = 32 * 1024 * 1024
"""What is restored is joined outside of the row first: at most so much (or one plane) is there twice. Each evaluation
waits for the device, which on the CPU costs nothing."""

DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_Kind = tuple[int, int, mx.Dtype]

SavedSlot = tuple[BlockSave, Sequence[mx.array], int]
"""What to save, and where its row is: the planes of the pool, and the slot's index in them."""


class BlockStore:
    """Owner of the blocks' arrays. A plane is [slots, heads, positions, dim]; blocks fit planes of the same kinds."""

    def __init__(self, layouts: Sequence[CacheLayout]) -> None:
        self.parts = block_parts(layouts)
        """What a block consists of; empty where a dtype is none that can be loaded and read."""
        self._blocks: dict[BlockId, list[mx.array]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """Memory of all blocks."""
        return sum(array.nbytes for arrays in self._blocks.values() for array in arrays)

    def save(self, saves: Sequence[SavedSlot]) -> None:
        """Copies blocks out of slots. Raises PlanError when an id is in use."""
        for save, planes, slot in saves:
            self._check_new(save.block_id)
            positions = slice(save.start, save.start + BLOCK_TOKENS)
            self._blocks[save.block_id] = [
                _stacked([planes[index][slot, :, positions] for index in of_kind])
                for of_kind in _by_kind(planes).values()
            ]
        mx.eval([self._blocks[save.block_id] for save, _, _ in saves])

    def load(self, loads: Sequence[BlockLoad]) -> None:
        """Makes blocks of what `read` gave once. Raises PlanError when an id is in use or the bytes do not fit."""
        for load in loads:
            self._check_new(load.block_id)
            if [part.nbytes for part in self.parts] != [data.nbytes for data in load.data]:
                raise PlanError(f"block {load.block_id}: what is loaded is no block of this model")
            self._blocks[load.block_id] = [
                mx.array(data).view(DTYPES[part.dtype]).reshape(part.shape)  # type: ignore[arg-type]  # as below
                for part, data in zip(self.parts, load.data, strict=True)
            ]
        mx.eval([self._blocks[load.block_id] for load in loads])

    def read(self, block_id: BlockId) -> BlockData:
        """See Device.read_block. Raises PlanError for a block that is not stored."""
        if block_id not in self._blocks:
            raise PlanError(f"block {block_id} is not stored")
        # MLX's stubs do not say that arrays have, and can be made of, buffers.
        return [memoryview(array).cast("B") for array in self._blocks[block_id]]  # type: ignore[arg-type]

    def restore(self, restore: BlockRestore, planes: Sequence[mx.array], slot: int) -> None:
        """Copies blocks, one after the other, to the start of a slot. Raises PlanError for one that is not stored."""
        if missing := [block_id for block_id in restore.block_ids if block_id not in self._blocks]:
            raise PlanError(f"row {restore.row}: blocks {missing} are not stored")
        whole = len(restore.block_ids) * BLOCK_TOKENS
        if not whole - BLOCK_TOKENS < restore.tokens <= whole:
            raise PlanError(f"row {restore.row}: {restore.tokens} tokens of {len(restore.block_ids)} blocks")
        written, written_bytes = list[mx.array](), 0
        for number, of_kind in enumerate(_by_kind(planes).values()):
            stacked = [self._blocks[block_id][number] for block_id in restore.block_ids]
            for place, index in enumerate(of_kind):
                joined = mx.concatenate([array[place : place + 1] for array in stacked], axis=2)
                planes[index][slot : slot + 1, :, : restore.tokens] = joined[:, :, : restore.tokens]
                written.append(planes[index])
                written_bytes += joined.nbytes
                if written_bytes >= RESTORED_AT_ONCE_BYTES:
                    mx.eval(written)
                    written, written_bytes = [], 0
        mx.eval(written)

    def drop(self, block_ids: Sequence[BlockId]) -> None:
        """Frees blocks. Raises PlanError for one that is not stored."""
        for block_id in block_ids:
            if self._blocks.pop(block_id, None) is None:
                raise PlanError(f"block {block_id} is not stored")

    def check_invariants(self) -> None:
        """Asserts that all blocks have the stated parts, where blocks can be read."""
        shapes = [part.shape for part in self.parts]
        if shapes:
            assert all([array.shape for array in arrays] == shapes for arrays in self._blocks.values())

    def _check_new(self, block_id: BlockId) -> None:
        if block_id in self._blocks:
            raise PlanError(f"block {block_id} is stored already")


def block_parts(layouts: Sequence[CacheLayout]) -> tuple[BlockPart, ...]:
    """What a block of a model with these caches consists of."""
    counts: dict[_Kind, int] = {}
    for layer in (layout for layout in flat_layouts(layouts) if isinstance(layout, LayerLayout)):
        kinds = ((layer.key_dim, layer.key_dtype), (layer.value_dim, layer.value_dtype))
        for kind in ((layer.heads, dim, dtype) for dim, dtype in kinds if layer.heads and dim):
            counts[kind] = counts.get(kind, 0) + 1
    if not all(dtype in _DTYPE_NAMES for _, _, dtype in counts):
        return ()
    return tuple(
        BlockPart(_DTYPE_NAMES[dtype], (planes, heads, BLOCK_TOKENS, dim))
        for (heads, dim, dtype), planes in counts.items()
    )


def _stacked(slices: list[mx.array]) -> mx.array:
    return mx.stack(slices) if len(slices) > 1 else copied(slices[0])[None]


def _by_kind(planes: Sequence[mx.array]) -> dict[_Kind, list[int]]:
    """Indices of the planes of each kind, in the order in which kinds appear."""
    kinds: dict[_Kind, list[int]] = {}
    for index, plane in enumerate(planes):
        kinds.setdefault((plane.shape[1], plane.shape[3], plane.dtype), []).append(index)
    return kinds
