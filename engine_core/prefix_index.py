"""Which blocks of KV are stored, and which goes when there is no room. Pure: the device holds what is in them.

A block is stored only behind its parent, and goes only when no block follows it: what can be reached from the root
of a chain is what is there. A new block is on probation. A second request that uses it makes it protected, with all
before it; protected blocks may fill PROTECTED_SHARE of the store, the longest unused are put back on probation. New
blocks push out blocks on probation alone, the longest unused first, so however many prompts come that nobody shares,
and however long they are, they take no protected prefix away; a chain too long for the rest is stored in part.
What is stored serves to the token: a chain that ends, or turns elsewhere, inside of a stored block can use that
block's beginning (engine_core.block_siblings).
(Segmented LRU: Karedla, Love, Wherry, "Caching strategies to improve disk system performance", 1994.)
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from engine_core.block_siblings import BlockSiblings, TokenKey, token_key
from engine_core.device import BlockId
from protocol.prefix_hash import BlockHash

PROTECTED_SHARE = 0.8
"""Of the capacity: the rest is where new prefixes have the time to be asked for again."""
_SPARE = 64
"""Entries that are out of date and left in the heap, beyond as many as there are blocks."""


class _Block:
    __slots__ = ("block_hash", "block_id", "is_protected", "key", "last_used", "parent", "parent_hash", "pins")

    def __init__(
        self, block_id: BlockId, block_hash: BlockHash, key: TokenKey, parent_hash: BlockHash, parent: "_Block | None"
    ) -> None:
        self.block_id = block_id
        self.block_hash = block_hash
        self.key = key
        self.parent_hash = parent_hash
        """Of the root of the chain where there is no parent."""
        self.parent = parent
        self.last_used = 0
        self.pins = 0
        self.is_protected = False


class PrefixIndex:
    """Owner of what is stored. A chain is a root and the hashes of the blocks behind it (protocol.prefix_hash)."""

    def __init__(self, capacity: int = 0) -> None:
        """`capacity` in blocks."""
        self._capacity = capacity
        self._blocks: dict[BlockHash, _Block] = {}
        self._children: dict[BlockHash, BlockSiblings] = {}
        """By the hash of the parent, or of the root; only of those that have some."""
        self._protected: OrderedDict[BlockHash, _Block] = OrderedDict()
        """The longest unused first. A parent is used whenever its child is, and after it: so leaves come first."""
        self._probation: list[tuple[int, BlockHash]] = []
        """Heap of (last used, hash) with an entry for each leaf on probation, and entries that are out of date."""
        self._uses = 0
        self._inserted = 0
        self._evicted: list[tuple[BlockId, BlockHash]] = []

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

    def most_alike(self, parent: BlockHash, token_ids: Sequence[int]) -> tuple[BlockHash, int] | None:
        """The block behind `parent` (or the root) that begins with most of these tokens, and with how many."""
        siblings = self._children.get(parent)
        return None if siblings is None else siblings.most_alike(token_key(token_ids))

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

    def insert(
        self, block_hash: BlockHash, parent_hash: BlockHash, token_ids: Sequence[int], *, is_first: bool
    ) -> BlockId | None:
        """Stores a block of these tokens, which is not stored yet; `is_first` when what it follows is the root.

        Its id, or None when there is no room or its parent is not stored. What had to go for it is in `take_evicted`.
        """
        assert block_hash not in self._blocks
        parent = self._blocks.get(parent_hash)
        if (parent is None and not is_first) or not self._make_room_beside(parent):
            return None
        block = _Block(BlockId(self._inserted), block_hash, token_key(token_ids), parent_hash, parent)
        block.last_used = self._next_use()
        self._inserted += 1
        self._blocks[block.block_hash] = block
        self._children.setdefault(block.parent_hash, BlockSiblings()).add(block.key, block.block_hash)
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

    def take_evicted(self) -> list[tuple[BlockId, BlockHash]]:
        """Blocks that went since this was last asked."""
        evicted, self._evicted = self._evicted, []
        return evicted

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
            if block is None or block.is_protected or self._has_children(block) or block.last_used != entry[0]:
                continue
            if block.pins:
                pinned.append(entry)
            else:
                found = block
        for entry in pinned:
            heappush(self._probation, entry)
        return found

    def _oldest_protected_leaf(self) -> _Block | None:
        leaves = (block for block in self._protected.values() if not self._has_children(block))
        return next((block for block in leaves if not block.pins), None)

    def _has_children(self, block: _Block) -> bool:
        return block.block_hash in self._children

    def _evict(self, block: _Block) -> None:
        del self._blocks[block.block_hash]
        self._protected.pop(block.block_hash, None)
        self._evicted.append((block.block_id, block.block_hash))
        siblings = self._children[block.parent_hash]
        siblings.remove(block.key)
        if not siblings:
            del self._children[block.parent_hash]
        if block.parent is not None:
            self._note_leaf(block.parent)

    def _demote(self) -> None:
        while len(self._protected) > self._capacity * PROTECTED_SHARE:
            _, block = self._protected.popitem(last=False)
            block.is_protected = False
            block.last_used = self._next_use()
            self._note_leaf(block)

    def _note_leaf(self, block: _Block) -> None:
        if block.is_protected or self._has_children(block):
            return
        heappush(self._probation, (block.last_used, block.block_hash))
        if len(self._probation) > 2 * len(self._blocks) + _SPARE:
            leaves = [b for b in self._blocks.values() if not (b.is_protected or self._has_children(b))]
            self._probation = [(b.last_used, b.block_hash) for b in leaves]
            heapify(self._probation)

    def check_invariants(self) -> None:
        """Raises AssertionError when the index contradicts itself."""
        children = Counter(block.parent_hash for block in self._blocks.values())
        for block_hash, block in self._blocks.items():
            assert block.block_hash == block_hash and block.pins >= 0
            if block.parent is not None:
                assert self._blocks.get(block.parent_hash) is block.parent, "a block without its parent"
                assert block.parent.is_protected or not block.is_protected, "protected behind one that is not"
        assert children == {parent: len(siblings) for parent, siblings in self._children.items()}
        for siblings in self._children.values():
            siblings.check_invariants()
        assert {h for h, block in self._blocks.items() if block.is_protected} == set(self._protected)
        assert len(self._protected) <= self._capacity * PROTECTED_SHARE
        leaves = [block for block in self._blocks.values() if not self._has_children(block)]
        noted = set(self._probation)
        assert all(block.is_protected or (block.last_used, block.block_hash) in noted for block in leaves)
        assert len({block.block_id for block in self._blocks.values()}) == len(self._blocks)
