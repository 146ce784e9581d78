"""What a plan does with stored prefixes: out of rows, and into rows. Blocks of KV, and checkpoints of states."""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.block_store import BlockStore
from engine_core.checkpoint_store import CheckpointStore
from engine_core.device import BlockData, BlockId, BlockPart, BlockRestore, RowCopy, Slot, StepPlan
from engine_core.model_runner import PlanError
from engine_core.row_states import RowStates
from engine_core.slot_buffers import SlotPools
from engine_core.slot_layout import CacheLayout
from engine_core.slot_table import SlotTable
from protocol.prefix_hash import BLOCK_TOKENS


class PrefixStore:
    """Owner of blocks and checkpoints; slots and states are the runner's."""

    def __init__(self, layouts: Sequence[CacheLayout], pools: SlotPools, table: SlotTable, states: RowStates) -> None:
        self.blocks = BlockStore(layouts)
        self.checkpoints = CheckpointStore(states)
        self.block_parts: Sequence[BlockPart] = () if states.exist else self.blocks.parts
        """As in Device: a block without its checkpoint would be of no use outside of it."""
        self._pools = pools
        self._table = table
        self._has_states = states.exist

    def take(self, plan: StepPlan) -> None:
        """What comes before anything else in a plan: drops, loads and saves. Raises PlanError."""
        self.checkpoints.take_new()
        self.blocks.drop(plan.drops)
        self.checkpoints.drop(plan.checkpoint_drops)
        self.blocks.load(plan.loads)
        for save in plan.saves:
            self._table.check_holds(save.row, save.start + BLOCK_TOKENS)
        slots = [(save, self._table.slot_of(save.row)) for save in plan.saves]
        if slots:
            self.blocks.save([(save, self._planes(slot), slot.index) for save, slot in slots])
        for checkpoint in plan.checkpoint_saves:
            held = self._table.tokens_of(checkpoint.row)
            if not self._has_states or held != checkpoint.tokens:
                raise PlanError(f"row {checkpoint.row}: a checkpoint at {checkpoint.tokens}, but it is at {held}")
            self.checkpoints.save(checkpoint.block_id, checkpoint.row)
        if plan.admissions:
            mx.eval(self.checkpoints.new_arrays())  # room for more states is made next: the old ones must go

    def fill(self, plan: StepPlan) -> None:
        """Copies and restores, into rows that have just been admitted. Raises PlanError."""
        for copy in plan.copies:
            self._copy(copy)
        for restore in plan.restores:
            self._restore(restore)

    def read(self, block_id: BlockId) -> BlockData:
        """See Device."""
        return self.blocks.read(block_id)

    def _copy(self, copy: RowCopy) -> None:
        if self._has_states:
            raise PlanError("a copy of a row with recurrent states")
        self._table.check_holds(copy.source, copy.tokens)
        self._table.fill(copy.row, copy.tokens)
        self._pools.copy(self._table.slot_of(copy.source), self._table.slot_of(copy.row), copy.tokens)

    def _restore(self, restore: BlockRestore) -> None:
        if self._has_states and restore.tokens % BLOCK_TOKENS:
            raise PlanError(f"row {restore.row}: {restore.tokens} tokens, but states are as they are behind a block")
        self._table.fill(restore.row, restore.tokens)
        slot = self._table.slot_of(restore.row)
        self.blocks.restore(restore, self._planes(slot), slot.index)
        if self._has_states:
            self.checkpoints.restore(restore.block_ids[-1], restore.row)

    def check_invariants(self) -> None:
        """Asserts what must always hold."""
        self.blocks.check_invariants()
        assert self._has_states or not len(self.checkpoints)

    def _planes(self, slot: Slot) -> list[mx.array]:
        return self._pools.pools[slot.pool].planes()
