"""What the device is to do with blocks in a step, while the plan is in the making. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from engine_core.device import BlockId, BlockLoad, BlockRestore, BlockSave, CheckpointSave, RowCopy
from engine_core.pending_saves import PendingSave, PendingSaves
from engine_core.ssd_tier import BlockWrite


class BlockOrders(msgspec.Struct, frozen=True):
    """What the device is to do with blocks in a step."""

    drops: list[BlockId]
    loads: list[BlockLoad]
    saves: list[BlockSave]
    checkpoint_drops: list[BlockId]
    checkpoint_saves: list[CheckpointSave]
    copies: list[RowCopy]
    restores: list[BlockRestore]


class OrdersInTheMaking:
    """Owner of what the device has not been told yet."""

    def __init__(self) -> None:
        self._loads: dict[BlockId, BlockLoad] = {}
        self._saves = PendingSaves()
        self._checkpoint_saves: dict[BlockId, CheckpointSave] = {}
        self._copies: list[RowCopy] = []
        self._restores: list[BlockRestore] = []

    def load(self, load: BlockLoad) -> None:
        """By the plan in the making."""
        self._loads[load.block_id] = load

    def save(self, pending: PendingSave) -> None:
        """By that plan or a later one."""
        self._saves.add(pending)

    def save_checkpoint(self, save: CheckpointSave) -> None:
        """By the plan in the making: the next one changes the states."""
        self._checkpoint_saves[save.block_id] = save

    def copy(self, copy: RowCopy) -> None:
        """By the plan in the making."""
        self._copies.append(copy)

    def restore(self, restore: BlockRestore) -> None:
        """By the plan in the making."""
        self._restores.append(restore)

    def take(
        self, evicted: Iterable[BlockId], lost_checkpoints: Iterable[BlockId], releases: Iterable[int]
    ) -> tuple[BlockOrders, Sequence[BlockWrite]]:
        """The orders of a plan that releases these rows, and what is to go to the SSD once it was run.

        Who was stored and went since the last plan, the device never hears of.
        """
        drops = [b for b in evicted if not (self._saves.discard(b) or self._loads.pop(b, None) is not None)]
        checkpoint_drops = [b for b in lost_checkpoints if self._checkpoint_saves.pop(b, None) is None]
        saves = self._saves.take(releases, is_wanted=bool(self._copies or self._restores))
        orders = BlockOrders(
            drops=drops,
            loads=list(self._loads.values()),
            saves=[pending.save for pending in saves],
            checkpoint_drops=checkpoint_drops,
            checkpoint_saves=list(self._checkpoint_saves.values()),
            copies=self._copies,
            restores=self._restores,
        )
        self._loads, self._checkpoint_saves, self._copies, self._restores = {}, {}, [], []
        return orders, [pending.write for pending in saves if pending.write is not None]

    def check_invariants(self, pins: int) -> None:
        """Raises AssertionError when there is not one of these pins for each restore."""
        assert pins == len(self._restores)
