"""Which blocks of KV are stored, and which goes when there is no room. Pure: the device holds what is in them.

A block is stored only behind its parent, and goes only when no block follows it: what can be reached from the root
of a chain is what is there. A new block is on probation. A second request that uses it makes it protected, with all
before it; protected blocks may fill PROTECTED_SHARE of the store, the longest unused are put back on probation. New
blocks push out blocks on probation alone, the longest unused first, so however many prompts come that nobody shares,
and however long they are, they take no protected prefix away; a chain too long for the rest is stored in part.
(Segmented LRU: Karedla, Love, Wherry, "Caching strategies to improve disk system performance", 1994.)
"""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from engine_core.device import BlockId
from protocol.prefix_hash import BlockHash

PROTECTED_SHARE = 0.8
"""Of the capacity: the rest is where new prefixes have the time to be asked for again."""


class _Block:
    __slots__ = ("block_hash", "block_id", "children", "is_protected", "last_used", "parent", "pins")

    def __init__(self, block_id: BlockId, block_hash: BlockHash, parent: "_Block | None", last_used: int) -> None:
        self.block_id = block_id
        self.block_hash = block_hash
        self.parent = parent
        self.last_used = last_used
        self.children = 0
        self.pins = 0
        self.is_protected = False


class PrefixIndex:
    """Owner of what is stored. A chain is a root and the hashes of the blocks behind it (protocol.prefix_hash)."""

    def __init__(self, capacity: int = 0) -> None:
        """`capacity` in blocks."""
        self._capacity = capacity
        self._blocks: dict[BlockHash, _Block] = {}
        self._protected: OrderedDict[BlockHash, _Block] = OrderedDict()
        """The longest unused first. A parent is used whenever its child is, and after it: so leaves come first."""
        self._probation: list[tuple[int, BlockHash]] = []
        """Heap of (last used, hash) with an entry for each leaf on probation, and entries that are out of date."""
        self._uses = 0
        self._inserted = 0
        self._evicted: list[BlockId] = []
        self._changes: dict[BlockHash, bool] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

    @property
    def capacity(self) -> int:
        """Blocks."""
        return self._capacity

    def matched(self, chain: Sequence[BlockHash]) -> int:
        """How many blocks of the chain, which is not empty, are stored: from its root on."""
        stored, missing = 0, len(chain)
        while missing - stored > 1:  # what is stored of a chain has no gaps
            middle = (stored + missing) // 2
            if chain[middle] in self._blocks:
                stored = middle
            else:
                missing = middle
        return stored

    def block_ids(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Of stored blocks. Raises KeyError for one that is not."""
        return [self._blocks[block_hash].block_id for block_hash in hashes]

    def use(self, hashes: Sequence[BlockHash], *, protect: bool) -> None:
        """These blocks, the first of a chain, are used; `protect` when by another request than the one before."""
        for block_hash in reversed(hashes):
            block = self._blocks[block_hash]
            block.last_used = self._next_use()
            if block.is_protected:
                self._protected.move_to_end(block_hash)
            elif protect:
                block.is_protected = True
                self._protected[block_hash] = block
            else:
                self._note_leaf(block)
        self._demote()

    def pin(self, block_hash: BlockHash) -> None:
        """The block, and so all before it, stays until it is unpinned as often as it was pinned."""
        self._blocks[block_hash].pins += 1

    def unpin(self, block_hash: BlockHash) -> None:
        """See `pin`."""
        block = self._blocks[block_hash]
        assert block.pins > 0
        block.pins -= 1

    def insert(self, chain: Sequence[BlockHash], place: int) -> BlockId | None:
        """Stores block `chain[place]` (from 1), which is not stored yet; its id, or None when there is no room.

        None too when its parent is not stored. What had to go for it is in `take_evicted`.
        """
        assert chain[place] not in self._blocks
        parent = self._blocks.get(chain[place - 1])
        if (parent is None and place > 1) or not self._make_room_beside(parent):
            return None
        block = _Block(BlockId(self._inserted), chain[place], parent, self._next_use())
        self._inserted += 1
        self._blocks[block.block_hash] = block
        self._changes[block.block_hash] = True
        if parent is not None:
            parent.children += 1
        self._note_leaf(block)
        return block.block_id

    def set_capacity(self, capacity: int) -> None:
        """Blocks beyond it go, protected ones last; pinned ones stay even then."""
        self._capacity = capacity
        while len(self._blocks) > capacity:
            victim = self._pop_probation_leaf() or self._oldest_protected_leaf()
            if victim is None:
                break
            self._evict(victim)
        self._demote()

    def take_evicted(self) -> list[BlockId]:
        """Blocks that went since this was last asked."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def take_changes(self) -> dict[BlockHash, bool]:
        """Blocks that came (true) or went (false) since this was last asked; of several changes the last."""
        changes, self._changes = self._changes, {}
        return changes

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses

    def _make_room_beside(self, parent: _Block | None) -> bool:
        if len(self._blocks) < self._capacity:
            return True
        if parent is not None:
            parent.pins += 1
        victim = self._pop_probation_leaf() if len(self._blocks) == self._capacity else None
        if parent is not None:
            parent.pins -= 1
        if victim is None:
            return False
        self._evict(victim)
        return True

    def _pop_probation_leaf(self) -> _Block | None:
        """The longest unused that is not pinned; the caller evicts it."""
        pinned, found = [], None
        while self._probation and found is None:
            entry = heappop(self._probation)
            block = self._blocks.get(entry[1])
            if block is None or block.is_protected or block.children or block.last_used != entry[0]:
                continue
            if block.pins:
                pinned.append(entry)
            else:
                found = block
        for entry in pinned:
            heappush(self._probation, entry)
        return found

    def _oldest_protected_leaf(self) -> _Block | None:
        return next((block for block in self._protected.values() if not block.children and not block.pins), None)

    def _evict(self, block: _Block) -> None:
        del self._blocks[block.block_hash]
        self._protected.pop(block.block_hash, None)
        self._evicted.append(block.block_id)
        self._changes[block.block_hash] = False
        if block.parent is not None:
            block.parent.children -= 1
            self._note_leaf(block.parent)

    def _demote(self) -> None:
        while len(self._protected) > self._capacity * PROTECTED_SHARE:
            _, block = self._protected.popitem(last=False)
            block.is_protected = False
            block.last_used = self._next_use()
            self._note_leaf(block)

    def _note_leaf(self, block: _Block) -> None:
        if block.children or block.is_protected:
            return
        heappush(self._probation, (block.last_used, block.block_hash))
        if len(self._probation) > 2 * len(self._blocks) + 64:
            leaves = [b for b in self._blocks.values() if not (b.children or b.is_protected)]
            self._probation = [(b.last_used, b.block_hash) for b in leaves]
            heapify(self._probation)

    def check_invariants(self) -> None:
        """Raises AssertionError when the index contradicts itself."""
        children = dict.fromkeys(self._blocks, 0)
        for block_hash, block in self._blocks.items():
            assert block.block_hash == block_hash and block.pins >= 0
            if block.parent is not None:
                assert self._blocks.get(block.parent.block_hash) is block.parent, "a block without its parent"
                assert block.parent.is_protected or not block.is_protected, "protected behind one that is not"
                children[block.parent.block_hash] += 1
        assert all(block.children == children[block_hash] for block_hash, block in self._blocks.items())
        assert {h for h, block in self._blocks.items() if block.is_protected} == set(self._protected)
        assert len(self._protected) <= self._capacity * PROTECTED_SHARE
        leaves = [block for block in self._blocks.values() if not block.children]
        noted = set(self._probation)
        assert all(block.is_protected or (block.last_used, block.block_hash) in noted for block in leaves)
        assert len({block.block_id for block in self._blocks.values()}) == len(self._blocks)
