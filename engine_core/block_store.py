"""The stored blocks of the prefix store: KV of 64 tokens of all layers, in memory of its own, in RAM.

A block is one array for each kind of plane, [planes of that kind, heads, 64, dim]: a plane is the keys or the values
of one layer, and a kind is its heads, dim and dtype, so that most models have one array a block. (Few large arrays:
Metal has a limit of 499,000.) What is saved is copied and evaluated at once: a slice of a slot buffer that waited, or
stayed, would turn each later write into a copy of the whole buffer.

Measured (15 blocks of 30 layers x 3 heads x 64, 2 CPU cores): 2.2 ms to save a block, 2.8 ms to restore one in a run;
restoring plane by plane needs 1.5 MB beside the blocks, all planes at once 25 MB, and is no faster.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import BlockId
from engine_core.model_runner import PlanError
from protocol.prefix_hash import BLOCK_TOKENS

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

    def save(self, block_id: BlockId, planes: Sequence[mx.array], row: int, start: int) -> None:
        """Copies the block that begins at `start` out of a row. Raises PlanError when the id is in use."""
        if block_id in self._blocks:
            raise PlanError(f"block {block_id} is stored already")
        positions = slice(start, start + BLOCK_TOKENS)
        arrays = [
            _copied([planes[index][row, :, positions] for index in of_kind]) for of_kind in _by_kind(planes).values()
        ]
        mx.eval(arrays)
        self._blocks[block_id] = arrays

    def restore(self, block_ids: Sequence[BlockId], planes: Sequence[mx.array], row: int) -> None:
        """Copies blocks, one after the other, to the start of a row. Raises PlanError for one that is not stored."""
        if missing := [block_id for block_id in block_ids if block_id not in self._blocks]:
            raise PlanError(f"row {row}: blocks {missing} are not stored")
        end = len(block_ids) * BLOCK_TOKENS
        for number, of_kind in enumerate(_by_kind(planes).values()):
            stacked = [self._blocks[block_id][number] for block_id in block_ids]
            for place, index in enumerate(of_kind):
                plane = planes[index]
                plane[row, :, :end] = mx.concatenate([array[place] for array in stacked], axis=1)
                mx.eval(plane)

    def drop(self, block_ids: Sequence[BlockId]) -> None:
        """Frees blocks. Raises PlanError for one that is not stored."""
        for block_id in block_ids:
            if self._blocks.pop(block_id, None) is None:
                raise PlanError(f"block {block_id} is not stored")


def _copied(slices: list[mx.array]) -> mx.array:
    """The slices stacked, in new memory: a stack of one would be the slice itself, and with it the whole buffer."""
    return mx.stack(slices) if len(slices) > 1 else (slices[0] * 1)[None]


def _by_kind(planes: Sequence[mx.array]) -> dict[_Kind, list[int]]:
    """Indices of the planes of each kind, in the order in which kinds appear."""
    kinds: dict[_Kind, list[int]] = {}
    for index, plane in enumerate(planes):
        kinds.setdefault((plane.shape[1], plane.shape[3], plane.dtype), []).append(index)
    return kinds
