"""The stored blocks of the prefix store: KV of 64 tokens of all layers, in memory of its own, in RAM.

A block is one array for each kind of plane, [planes of that kind, heads, 64, dim]: a plane is the keys or the values
of one layer, and a kind is its heads, dim and dtype, so that most models have one array a block. (Few large arrays:
Metal has a limit of 499,000.) What is saved is copied and evaluated at once: a slice of a slot buffer that waited, or
stayed, would turn each later write into a copy of the whole buffer.

Measured (15 blocks of 30 layers x 3 heads x 64, 2 CPU cores): 2.2 ms to save a block, 2.8 ms to restore one in a run.
To restore all planes at once was no faster than plane by plane, and took 25 MB beside the blocks instead of 1.5.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import BlockId, BlockSave
from engine_core.model_runner import PlanError
from engine_core.slot_buffers import copied
from protocol.prefix_hash import BLOCK_TOKENS

RESTORED_AT_ONCE_BYTES = 32 * 1024 * 1024
"""What is restored is joined outside of the row first: at most so much (or one plane) is there twice. Each evaluation
waits for the device, which on the CPU costs nothing."""

_Kind = tuple[int, int, mx.Dtype]


class BlockStore:
    """Owner of the blocks' arrays. A plane is [rows, heads, positions, dim]; blocks fit planes of the same kinds."""

    def __init__(self) -> None:
        self._blocks: dict[BlockId, list[mx.array]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """Memory of all blocks."""
        return sum(array.nbytes for arrays in self._blocks.values() for array in arrays)

    def save(self, saves: Sequence[BlockSave], planes: Sequence[mx.array]) -> None:
        """Copies blocks out of rows. Raises PlanError when an id is in use."""
        for save in saves:
            if save.block_id in self._blocks:
                raise PlanError(f"block {save.block_id} is stored already")
            positions = slice(save.start, save.start + BLOCK_TOKENS)
            self._blocks[save.block_id] = [
                _stacked([planes[index][save.row, :, positions] for index in of_kind])
                for of_kind in _by_kind(planes).values()
            ]
        mx.eval([self._blocks[save.block_id] for save in saves])

    def restore(self, block_ids: Sequence[BlockId], planes: Sequence[mx.array], row: int) -> None:
        """Copies blocks, one after the other, to the start of a row. Raises PlanError for one that is not stored."""
        if missing := [block_id for block_id in block_ids if block_id not in self._blocks]:
            raise PlanError(f"row {row}: blocks {missing} are not stored")
        end, written, written_bytes = len(block_ids) * BLOCK_TOKENS, [], 0
        for number, of_kind in enumerate(_by_kind(planes).values()):
            stacked = [self._blocks[block_id][number] for block_id in block_ids]
            for place, index in enumerate(of_kind):
                joined = mx.concatenate([array[place : place + 1] for array in stacked], axis=2)
                planes[index][row : row + 1, :, :end] = joined
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


def _stacked(slices: list[mx.array]) -> mx.array:
    return mx.stack(slices) if len(slices) > 1 else copied(slices[0])[None]


def _by_kind(planes: Sequence[mx.array]) -> dict[_Kind, list[int]]:
    """Indices of the planes of each kind, in the order in which kinds appear."""
    kinds: dict[_Kind, list[int]] = {}
    for index, plane in enumerate(planes):
        kinds.setdefault((plane.shape[1], plane.shape[3], plane.dtype), []).append(index)
    return kinds
