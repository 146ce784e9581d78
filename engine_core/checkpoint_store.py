"""Checkpoints: the recurrent states of one row as they were at a block border, in memory of their own, in RAM.

The copies are not evaluated when they are made, so nothing waits for them: they are computed with the step that
follows. That costs nothing more where a step reads states of the rows that it feeds and then replaces them anyway.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import BlockId
from engine_core.model_runner import PlanError
from engine_core.row_states import RowStates


class CheckpointStore:
    """Owner of the checkpoints' arrays, by the block behind whose tokens they are."""

    def __init__(self, states: RowStates) -> None:
        self._states = states
        self._checkpoints: dict[BlockId, list[mx.array]] = {}
        self._new: list[BlockId] = []
        """That may not be evaluated yet."""

    def __len__(self) -> int:
        return len(self._checkpoints)

    @property
    def nbytes(self) -> int:
        """Memory of all checkpoints."""
        return sum(array.nbytes for arrays in self._checkpoints.values() for array in arrays)

    def save(self, block_id: BlockId, row: int) -> None:
        """Copies a row's states. Raises PlanError when the id is in use."""
        if block_id in self._checkpoints:
            raise PlanError(f"block {block_id} has a checkpoint already")
        self._checkpoints[block_id] = self._states.snapshot(row)
        self._new.append(block_id)

    def restore(self, block_id: BlockId, row: int) -> None:
        """A row gets the states of a checkpoint. Raises PlanError when there is none."""
        if block_id not in self._checkpoints:
            raise PlanError(f"row {row}: block {block_id} has no checkpoint")
        self._states.write(row, self._checkpoints[block_id])

    def drop(self, block_ids: Sequence[BlockId]) -> None:
        """Frees checkpoints. Raises PlanError for one that is not stored."""
        for block_id in block_ids:
            if self._checkpoints.pop(block_id, None) is None:
                raise PlanError(f"block {block_id} has no checkpoint")

    def take_new(self) -> None:
        """What was saved until now is evaluated."""
        self._new = []

    def new_arrays(self) -> list[mx.array]:
        """Of checkpoints that may not be evaluated yet."""
        return [array for block_id in self._new for array in self._checkpoints.get(block_id, ())]
