"""What the scheduler does with stored prefixes: which blocks a step saves, restores and drops. Pure.

Blocks and rows share the memory of the KV cache, and rows come first: blocks have what the running sequences and room
for as many rows again (up to half of the cache) leave. Room for more rows is kept free because rows come and go fast,
and each time the rows' buffers grow little by little they are copied.

What was computed is saved when a block is complete, by the next plan, before anything else is done to its row: so
blocks of sequences that ended or lost their row are saved too. The first to compute a block saves it. When there is no
room for it the rest of its chain is not saved either.
"""

from collections.abc import Iterable

import msgspec

from engine_core.device import BlockId, BlockRestore, BlockSave
from engine_core.prefix_index import PrefixIndex
from engine_core.sequence import Sequence
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash


class BlockOrders(msgspec.Struct, frozen=True):
    """What the device is to do with blocks in a step."""

    drops: list[BlockId]
    saves: list[BlockSave]
    restores: list[BlockRestore]


class PrefixCache:
    """Owner of the index of blocks, and of what the device has not been told about it yet."""

    def __init__(self, kv_capacity_tokens: int) -> None:
        self._kv_capacity_tokens = kv_capacity_tokens
        self._index = PrefixIndex(kv_capacity_tokens // BLOCK_TOKENS)
        self._saves: dict[BlockId, BlockSave] = {}
        self._restores: list[BlockRestore] = []
        self._restored: set[BlockHash] = set()
        """Blocks that the plan in the making, or in flight, restores."""
        self._pins: list[BlockHash] = []
        self.queries_tokens_total = 0
        """Prompt tokens of sequences when they were first admitted."""
        self.hits_tokens_total = 0
        """Those of them that were restored."""

    @property
    def restored_tokens(self) -> int:
        """Tokens of blocks that must stay until the plan has run."""
        return len(self._restored) * BLOCK_TOKENS

    def save(self, sequences: Iterable[Sequence]) -> None:
        """Stores the blocks of these running sequences that were completed since this was last done."""
        for sequence in sequences:
            for place in sequence.take_complete_blocks():
                if sequence.chain[place] in self._index:
                    continue
                block_id = self._index.insert(sequence.chain, place)
                if block_id is not None:
                    self._saves[block_id] = BlockSave(block_id, sequence.row, (place - 1) * BLOCK_TOKENS)

    def stored_tokens(self, sequence: Sequence) -> int:
        """Tokens of it that are stored; never all, because the last one is to be computed."""
        return self._stored_blocks(sequence) * BLOCK_TOKENS

    def is_coming(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether one that runs, of no lower priority, is about to compute the next block of this one that waits.

        Then it is worth waiting for. It lasts no longer than that one's prefill: when it ends or loses its row, or
        passes the block and it is not stored, there is nothing to wait for any more.
        """
        chain, place = sequence.chain, self._stored_blocks(sequence) + 1
        if self._index.capacity == 0 or place > _most_blocks(sequence):
            return False
        return any(
            other.order[0] <= sequence.order[0]
            and other.num_computed < place * BLOCK_TOKENS
            and place < len(other.chain)
            and other.chain[place] == chain[place]
            for other in running
        )

    def restore(self, sequence: Sequence, rows_tokens: int) -> None:
        """A sequence was given an empty row: what is stored of it, and fits beside the rows, is restored there."""
        if not sequence.chain:
            return
        is_first_time = sequence.cached_tokens is None
        hashes = sequence.chain[1 : 1 + self._restorable_blocks(sequence, rows_tokens)]
        if hashes:
            self._index.use(hashes, protect=is_first_time)
            self._index.pin(hashes[-1])
            self._pins.append(hashes[-1])
            self._restored.update(hashes)
            self._restores.append(BlockRestore(sequence.row, self._index.block_ids(hashes)))
        sequence.restored(len(hashes) * BLOCK_TOKENS)
        if is_first_time:
            self.queries_tokens_total += len(sequence.prompt)
            self.hits_tokens_total += len(hashes) * BLOCK_TOKENS

    def take_orders(self, rows_tokens: int) -> BlockOrders:
        """What the device is to do in a step whose rows take so many tokens. Blocks beyond the memory left go."""
        more_rows = min(2 * rows_tokens, self._kv_capacity_tokens // 2)
        self._index.set_capacity((self._kv_capacity_tokens - max(rows_tokens, more_rows)) // BLOCK_TOKENS)
        # Who was stored and went since the last plan, the device never hears of.
        drops = [block_id for block_id in self._index.take_evicted() if self._saves.pop(block_id, None) is None]
        orders = BlockOrders(drops, list(self._saves.values()), self._restores)
        self._saves, self._restores = {}, []
        return orders

    def take_changes(self) -> dict[BlockHash, bool]:
        """See PrefixIndex."""
        return self._index.take_changes()

    def plan_done(self) -> None:
        """The device has run the plan: what it restored may go."""
        for block_hash in self._pins:
            self._index.unpin(block_hash)
        self._pins.clear()
        self._restored.clear()

    def _stored_blocks(self, sequence: Sequence) -> int:
        return min(self._index.matched(sequence.chain), _most_blocks(sequence)) if sequence.chain else 0

    def _restorable_blocks(self, sequence: Sequence, rows_tokens: int) -> int:
        room = (self._kv_capacity_tokens - rows_tokens - self.restored_tokens) // BLOCK_TOKENS
        blocks = 0
        for block_hash in sequence.chain[1 : 1 + self._stored_blocks(sequence)]:
            room -= block_hash not in self._restored
            if room < 0:
                break
            blocks += 1
        return blocks

    def check_invariants(self, rows_tokens: int | None) -> None:
        """Raises AssertionError when the state contradicts itself; `rows_tokens` of the plan in flight, if one is."""
        self._index.check_invariants()
        assert all(block_hash in self._index for block_hash in self._restored)
        if rows_tokens is None:
            assert not self._pins and not self._restored and not self._restores
        else:
            blocks_tokens = len(self._index) * BLOCK_TOKENS
            assert rows_tokens + blocks_tokens <= self._kv_capacity_tokens, "rows and blocks exceed the memory"


def _most_blocks(sequence: Sequence) -> int:
    return (sequence.num_tokens - 1) // BLOCK_TOKENS if sequence.chain else 0
