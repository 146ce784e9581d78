"""What the scheduler does with prefixes that were computed before: which blocks a step saves, restores and drops, and
which rows it copies from. Pure.

Blocks and rows share the memory of the KV cache, and rows come first: blocks have what the running sequences and room
for as many rows again (up to half of the cache) leave. Room for more rows is kept free because rows come and go fast,
and each time the rows' buffers grow little by little they are copied.

What was computed is stored when a block is complete, and copied to the store at the latest by the plan that releases
its row, before anything else is done (engine_core.pending_saves). The first to compute a block stores it. When there is
no room for it the rest of its chain is not stored either.

Who gets a row gets there what is stored of its tokens, to the last token that it shares with a stored block; or what
another row has of them, if that is more. At least one token is left to be computed. What is about to come, from a row
that computes it or from the SSD (engine_core.ssd_tier), is waited for.

Where the model has recurrent states, a row can start only where there is a checkpoint of them (engine_core.checkpoints
says where they are left). There blocks are stored when a checkpoint follows them, because without one they are of no
use, and nothing is copied from row to row.
"""

from collections.abc import Iterable

import msgspec

from engine_core.block_changes import BlockChanges, ChangeLog
from engine_core.block_orders import BlockOrders, OrdersInTheMaking
from engine_core.checkpoints import NO_BORDER, Checkpoints
from engine_core.device import BlockLoad, BlockRestore, BlockSave, CheckpointSave, RowCopy
from engine_core.live_prefixes import about_to_compute, longest_copy, longest_shared
from engine_core.pending_saves import PendingSave
from engine_core.prefix_index import PrefixIndex
from engine_core.sequence import Sequence
from engine_core.ssd_tier import BlocksRead, BlockWrite, SsdReport, SsdTier
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash

MIN_COPIED_TOKENS = 8
"""Less is not worth an order, which writes each layer's keys and values one by one. Processor time of a step with a
chunk of 16 tokens behind those (135M model, one core): 8 copied 115 ms, computed 140; 4: 119, 137; 1: 118, 124. And a
GPU computes a few tokens more for nothing. Most chat templates share 3 or 4 tokens and no more with each other."""
MIN_AWAITED_TOKENS = 16
"""Less is computed rather than waited for: the wait is a step at least, which takes as long as 20 tokens or so."""


class _Stored(msgspec.Struct, frozen=True):
    """What is stored of a sequence's tokens."""

    whole: list[BlockHash]
    """Its own first blocks."""
    part: list[BlockHash]
    """A block behind them of which it shares the first tokens; or none."""
    tokens: int

    @property
    def hashes(self) -> list[BlockHash]:
        """All blocks, the last of them maybe in part."""
        return self.whole + self.part


class PrefixCache:
    """Owner of the index of blocks, and of what the device has not been told about it yet."""

    def __init__(self, kv_capacity_tokens: int, ssd: SsdTier | None = None, checkpoint_tokens: int = 0) -> None:
        """`ssd`: where blocks are kept beyond RAM, if they are. `checkpoint_tokens` as in Device."""
        assert not (ssd and checkpoint_tokens), "a block on the SSD has no checkpoint"
        self._kv_capacity_tokens = kv_capacity_tokens
        self._index = PrefixIndex(kv_capacity_tokens // BLOCK_TOKENS, -(-checkpoint_tokens // BLOCK_TOKENS))
        self._checkpoints = Checkpoints(checkpoint_tokens) if checkpoint_tokens else None
        self._ssd = ssd
        self._log = ChangeLog()
        self._orders = OrdersInTheMaking()
        self._restored: set[BlockHash] = set()
        """Blocks that the plan in the making restores."""
        self._pins: list[BlockHash] = []
        self._newcomers: set[int] = set()
        """Rows that were empty before the plan in the making: there is nothing to be copied from them yet."""
        self.queries_tokens_total = 0
        """Prompt tokens of sequences when they were first admitted."""
        self.hits_tokens_total = 0
        """Those of them that were restored or copied."""

    @property
    def restored_tokens(self) -> int:
        """Tokens of blocks that must stay until the plan in the making is taken."""
        return sum(self._index.cost(block_hash) for block_hash in self._restored) * BLOCK_TOKENS

    def chunk_tokens(self, sequence: Sequence) -> int:
        """So many tokens on, the prefill of a running sequence is to stop for a step."""
        return NO_BORDER if self._checkpoints is None else self._checkpoints.chunk_tokens(sequence)

    # --- what there is ------------------------------------------------------------------------------------------

    def available_tokens(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Tokens of it that need not be computed; never all, because the last one is to be computed."""
        if not sequence.chain:
            return 0
        stored = self._find(sequence).tokens
        return _worth_it(longest_copy(sequence, self._donors(running), stored)[1])

    def is_coming(self, sequence: Sequence, running: Iterable[Sequence], *, is_overdue: bool) -> bool:
        """Whether more of its tokens will soon be there, and it is better to wait than to compute them.

        For one that runs, is of no lower priority and computes them: so no longer than for that one's prefill; and
        when the sequence `is_overdue` only for those that came before it, of which there are ever fewer: so it does
        not wait for ever. Or for the SSD, see there.
        """
        if not sequence.chain:
            return False
        stored = self._find(sequence)
        available = longest_copy(sequence, self._donors(running), stored.tokens)[1]
        last = sequence.order if is_overdue else (sequence.order[0] + 1, -1)
        ahead = (other for other in running if other.order < last)
        if self._checkpoints is not None:
            return self._checkpoints.ask(sequence, ahead, available + MIN_AWAITED_TOKENS)
        if about_to_compute(sequence, ahead, available + MIN_AWAITED_TOKENS):
            return True
        return self._is_coming_from_ssd(sequence, len(stored.whole) + 1, available)

    def _is_coming_from_ssd(self, sequence: Sequence, place: int, available: int) -> bool:
        most = sequence.num_tokens // BLOCK_TOKENS
        if self._ssd is None or sequence.request.cache_salt or place > min(most, self._index.capacity):
            return False
        if available >= min(place * BLOCK_TOKENS, sequence.num_tokens - 1):
            return False
        return self._ssd.is_coming(sequence.key, sequence.chain, place, most)

    def _find(self, sequence: Sequence) -> _Stored:
        chain, most = sequence.chain, sequence.num_tokens - 1
        matched = min(self._index.matched(chain), most // BLOCK_TOKENS)
        if self._checkpoints is not None:
            matched = self._index.last_checkpoint(chain, matched)
            return _Stored(list(chain[1 : 1 + matched]), [], matched * BLOCK_TOKENS)
        start = matched * BLOCK_TOKENS
        alike = self._index.most_alike(chain[matched], sequence.tokens(start, min(BLOCK_TOKENS, most - start)))
        part, shared = ([], 0) if alike is None else ([alike[0]], alike[1])
        return _Stored(list(chain[1 : 1 + matched]), part, start + shared)

    def _donors(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        if self._checkpoints is not None:
            return ()
        return (other for other in running if other.row not in self._newcomers)

    # --- a sequence gets a row ----------------------------------------------------------------------------------

    def restore(self, sequence: Sequence, running: Iterable[Sequence], rows_tokens: int) -> None:
        """A sequence was given an empty row: what is there of it, and fits beside the rows, is copied to it."""
        self._newcomers.add(sequence.row)
        self._plan_checkpoints(sequence, running)
        if not sequence.chain:
            return
        is_first_time = sequence.cached_tokens is None
        stored = self._find(sequence)
        self._use(stored, protect=is_first_time)
        stored = self._fitting(stored, rows_tokens)
        donor, copied = longest_copy(sequence, self._donors(running), stored.tokens)
        count = _worth_it(copied)
        if count and donor is not None:
            self._orders.copy(RowCopy(donor.row, sequence.row, count))
        elif count:
            self._restore(sequence.row, stored)
        sequence.restored(count)
        if is_first_time:
            self.queries_tokens_total += len(sequence.prompt)
            self.hits_tokens_total += min(count, len(sequence.prompt))

    def _plan_checkpoints(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        if self._checkpoints is None:
            return
        if sequence.chain:
            stored = self._index.matched(sequence.chain) * BLOCK_TOKENS
            self._checkpoints.admitted(sequence, max(stored, longest_shared(sequence, running)))
        else:
            self._checkpoints.forget(sequence.row)

    def _use(self, stored: _Stored, *, protect: bool) -> None:
        # A block that is used in part is not protected: of many that begin alike any would do.
        self._index.use(stored.part, protect=False)
        self._index.use(stored.whole, protect=protect)

    def _restore(self, row: int, stored: _Stored) -> None:
        self._index.pin(stored.hashes[-1])
        self._pins.append(stored.hashes[-1])
        self._restored.update(stored.hashes)
        self._orders.restore(BlockRestore(row, self._index.block_ids(stored.hashes), stored.tokens))

    def _fitting(self, stored: _Stored, rows_tokens: int) -> _Stored:
        """The first blocks, as many as can stay beside the rows and the others that this plan restores."""
        room = (self._kv_capacity_tokens - rows_tokens - self.restored_tokens) // BLOCK_TOKENS
        for count, block_hash in enumerate(stored.hashes):
            room -= 0 if block_hash in self._restored else self._index.cost(block_hash)
            if room < 0:
                return self._cut(stored.whole[:count])
        return stored

    def _cut(self, whole: list[BlockHash]) -> _Stored:
        """As much of it as can be restored."""
        while self._checkpoints is not None and whole and not self._index.has_checkpoint(whole[-1]):
            whole.pop()
        return _Stored(whole, [], len(whole) * BLOCK_TOKENS)

    # --- what was computed, or read -----------------------------------------------------------------------------

    def save(self, sequences: Iterable[Sequence]) -> None:
        """Stores the blocks of these running sequences that were completed since this was last done."""
        for sequence in sequences:
            if self._checkpoints is not None:
                if sequence.chain and self._checkpoints.is_due(sequence):
                    self._leave_checkpoint(self._checkpoints, sequence)
                continue
            for place in sequence.take_complete_blocks():
                if sequence.chain[place] not in self._index:
                    self._save(sequence, place)

    def _save(self, sequence: Sequence, place: int) -> None:
        start = (place - 1) * BLOCK_TOKENS
        token_ids = sequence.tokens(start, BLOCK_TOKENS)
        block_hash, parent = sequence.chain[place], sequence.chain[place - 1]
        block_id = self._index.insert(block_hash, parent, token_ids, is_first=place == 1)
        if block_id is None:
            return
        keeps = self._ssd is not None and not sequence.request.cache_salt
        write = BlockWrite(block_id, block_hash, parent, token_ids) if keeps else None
        self._orders.save(PendingSave(BlockSave(block_id, sequence.row, start), write))
        self._log.stored(block_hash)

    def _leave_checkpoint(self, checkpoints: Checkpoints, sequence: Sequence) -> None:
        """With the blocks before it, which the row has all of."""
        chain, place = sequence.chain, sequence.num_computed // BLOCK_TOKENS
        first = min(self._index.matched(chain), place) + 1
        if self._index.has_checkpoint(chain[place]) or not self._index.can_keep(place + 1 - first):
            return
        for missing in range(first, place + 1):
            self._save(sequence, missing)
        stored = self._index.matched(chain)
        if stored < place:
            self._index.evict_useless(chain[stored])
            return
        block_id = self._index.add_checkpoint(chain[place])
        if block_id is not None:
            self._orders.save_checkpoint(CheckpointSave(block_id, sequence.row, sequence.num_computed))
            given_up = checkpoints.left(sequence)
            if given_up is not None:
                self._index.remove_checkpoint(given_up)

    def blocks_read(self, done: BlocksRead) -> None:
        """Stores what was read from the SSD, as far as there is room."""
        assert self._ssd is not None
        parent, place, taken = done.read.parent, done.read.place, 0
        for block_hash, block in zip(done.read.hashes, done.blocks, strict=False):
            if block_hash not in self._index:
                block_id = self._index.insert(block_hash, parent, block.token_ids, is_first=place == 1)
                if block_id is None:
                    break
                self._orders.load(BlockLoad(block_id, block.data))
                self._log.stored(block_hash)
            parent, place, taken = block_hash, place + 1, taken + 1
        self._ssd.read_done(done, taken)

    def ssd_reported(self, report: SsdReport) -> None:
        """The SSD holds other blocks than before."""
        assert self._ssd is not None
        come, gone = self._ssd.reported(report)
        for block_hash in gone:
            self._log.evicted(block_hash)
        for block_hash in come:
            self._log.stored(block_hash)

    # --- plans --------------------------------------------------------------------------------------------------

    def take_orders(self, rows_tokens: int, releases: Iterable[int]) -> BlockOrders:
        """What the device is to do in a step whose rows take so many tokens, and that releases these rows.

        Blocks beyond the memory left go.
        """
        more_rows = min(2 * rows_tokens, self._kv_capacity_tokens // 2)
        self._index.set_capacity((self._kv_capacity_tokens - max(rows_tokens, more_rows)) // BLOCK_TOKENS)
        evicted = self._index.take_evicted()
        for _, block_hash in evicted:
            self._log.evicted(block_hash)
        evicted_ids = [block_id for block_id, _ in evicted]
        orders, writes = self._orders.take(evicted_ids, self._index.take_lost_checkpoints(), releases)
        if self._ssd is not None:
            for write in writes:
                self._ssd.saved(write)
            self._ssd.plan_taken(evicted_ids)
        for block_hash in self._pins:
            self._index.unpin(block_hash)  # plans run one after the other: the next one may drop it
        self._pins.clear()
        self._restored.clear()
        self._newcomers.clear()
        return orders

    def plan_done(self) -> None:
        """The oldest of the plans that were taken was run."""
        if self._ssd is not None:
            self._ssd.plan_done()

    # --- observation --------------------------------------------------------------------------------------------

    def take_changes(self) -> BlockChanges:
        """Blocks that came and went since this was last asked."""
        return self._log.take()

    def check_invariants(self, rows_tokens: int | None) -> None:
        """Raises AssertionError when the state contradicts itself; `rows_tokens` of the plan in flight, if one is."""
        self._index.check_invariants()
        self._log.check_invariants()
        assert all(block_hash in self._index for block_hash in self._restored)
        self._orders.check_invariants(len(self._pins))
        if self._checkpoints is not None:
            self._checkpoints.check_invariants()
        if self._ssd is not None:
            self._ssd.check_invariants()
        if rows_tokens is not None:
            blocks_tokens = self._index.used * BLOCK_TOKENS
            assert rows_tokens + blocks_tokens <= self._kv_capacity_tokens, "rows and blocks exceed the memory"


def _worth_it(tokens: int) -> int:
    return tokens if tokens >= MIN_COPIED_TOKENS else 0
