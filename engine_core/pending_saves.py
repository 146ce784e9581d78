"""When complete blocks of running rows are copied to the store: not one by one. Pure.

To copy a block out of a row the device has to wait: MLX writes into a buffer in place only when all that reads it is
done (engine_core.slot_buffers). With lookahead that is a wait of the host for the step before, and of the device for
the host; with 64 rows that decode there is a block in nearly every step. But a row keeps what it has computed. So
blocks are copied when somebody is to use one (then the device waits anyway), when a row with some goes, and else
every PLANS_TOGETHER plans, so that what is to be on the SSD when the process is killed comes there soon; or when there
are BLOCKS_TOGETHER of them, so that the SSD can follow.
"""

from collections.abc import Iterable

import msgspec

from engine_core.device import BlockId, BlockSave
from engine_core.ssd_tier import BlockWrite

PLANS_TOGETHER = 16
"""A step of many rows takes 20 to 100 ms: so a block is in no store for a second or so."""

BLOCKS_TOGETHER = 32
"""As many as the SSD's thread lets wait of an 8B model in bfloat16; a step that prefills so many is so long that the
wait is not felt."""


class PendingSave(msgspec.Struct, frozen=True):
    """A block that is in a row, and to be copied."""

    save: BlockSave
    write: BlockWrite | None
    """For the SSD, if it is to go there."""


class PendingSaves:
    """Owner of what is still to be copied."""

    def __init__(self) -> None:
        self._pending: dict[BlockId, PendingSave] = {}
        self._plans = 0
        """Taken since the oldest of them came."""

    def add(self, pending: PendingSave) -> None:
        """A block is complete."""
        self._pending[pending.save.block_id] = pending

    def discard(self, block_id: BlockId) -> bool:
        """Whether the block was still to be copied; now it is not."""
        return self._pending.pop(block_id, None) is not None

    def take(self, releases: Iterable[int], *, is_wanted: bool) -> list[PendingSave]:
        """What the plan in the making, which releases these rows, copies: all or nothing."""
        released = set(releases)
        is_due = is_wanted or self._plans >= PLANS_TOGETHER - 1 or len(self._pending) >= BLOCKS_TOGETHER
        if not (is_due or any(pending.save.row in released for pending in self._pending.values())):
            self._plans += bool(self._pending)
            return []
        taken, self._pending, self._plans = list(self._pending.values()), {}, 0
        return taken
