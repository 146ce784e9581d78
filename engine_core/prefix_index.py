"""Which blocks of KV are stored, and which goes when there is no room. Pure: the device holds what is in them.

A block is stored only behind its parent, and goes only when no block follows it: what can be reached from the root
of a chain is what is there. A new block is on probation. A second request that uses it makes it protected, with all
before it; protected blocks may fill PROTECTED_SHARE of the store, the longest unused are put back on probation. New
blocks push out blocks on probation alone, the longest unused first, so however many prompts come that nobody shares,
and however long they are, they take no protected prefix away; a chain too long for the rest is stored in part.
What is stored serves to the token: a chain that ends, or turns elsewhere, inside of a stored block can use that
block's beginning (engine_core.block_siblings).

Of a model with recurrent states a prefix is of use only up to a block with a checkpoint: the states as they were behind
it. A checkpoint takes the room of many blocks; it goes with its block, and what then leads to no checkpoint goes along.
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
    __slots__ = (
        "block_hash",
        "block_id",
        "has_checkpoint",
        "is_protected",
        "key",
        "last_used",
        "parent",
        "parent_hash",
        "pins",
    )

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
        self.has_checkpoint = False


class PrefixIndex:
    """Owner of what is stored. A chain is a root and the hashes of the blocks behind it (protocol.prefix_hash)."""

    def __init__(self, capacity: int = 0, checkpoint_blocks: int = 0) -> None:
        """`capacity` in blocks. A checkpoint takes as much as `checkpoint_blocks`; 0 for a model that needs none."""
        self._capacity = capacity
        self._checkpoint_blocks = checkpoint_blocks
        self._used = 0
        """Of the capacity."""
        self._protected_used = 0
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
        self._lost_checkpoints: list[BlockId] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

    @property
    def capacity(self) -> int:
        """Blocks."""
        return self._capacity

    @property
    def used(self) -> int:
        """Blocks, with what checkpoints take."""
        return self._used

    def cost(self, block_hash: BlockHash) -> int:
        """What a stored block takes of the capacity, with its checkpoint if it has one."""
        return self._cost(self._blocks[block_hash])

    def _cost(self, block: _Block) -> int:
        return 1 + self._checkpoint_blocks * block.has_checkpoint

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

    def last_checkpoint(self, chain: Sequence[BlockHash], most: int) -> int:
        """The last place up to `most` (which is stored, or 0) whose block has a checkpoint; 0 without any."""
        return next((place for place in range(most, 0, -1) if self._blocks[chain[place]].has_checkpoint), 0)

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
                self._protected_used += self._cost(block)
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
        if (parent is None and not is_first) or not self._make_room(1, beside=parent):
            return None
        block = _Block(BlockId(self._inserted), block_hash, token_key(token_ids), parent_hash, parent)
        block.last_used = self._next_use()
        self._inserted += 1
        self._blocks[block.block_hash] = block
        self._used += 1
        self._children.setdefault(block.parent_hash, BlockSiblings()).add(block.key, block.block_hash)
        self._note_leaf(block)
        return block.block_id

    def can_keep(self, blocks: int) -> bool:
        """Whether there would be room for so many blocks, and a checkpoint, if all that is on probation went."""
        return self._protected_used + blocks + self._checkpoint_blocks <= self._capacity

    def add_checkpoint(self, block_hash: BlockHash) -> BlockId | None:
        """A stored block gets a checkpoint; its id, or None when there is no room, and then the block may be gone."""
        block = self._blocks[block_hash]
        assert self._checkpoint_blocks and not block.has_checkpoint
        if not self._make_room(self._checkpoint_blocks, beside=block):
            self._evict_useless(block)
            return None
        block.has_checkpoint = True
        self._used += self._checkpoint_blocks
        self._protected_used += self._checkpoint_blocks * block.is_protected
        self._demote()
        return block.block_id

    def remove_checkpoint(self, block_hash: BlockHash) -> None:
        """Drops the checkpoint of a block, if it is there and nobody else has used it."""
        block = self._blocks.get(block_hash)
        if block is not None and block.has_checkpoint and not (block.is_protected or block.pins):
            self._lose_checkpoint(block)
            self._evict_useless(block)

    def evict_useless(self, block_hash: BlockHash) -> None:
        """If the block is stored and leads to no checkpoint it goes, and so do all before it that lead nowhere else."""
        block = self._blocks.get(block_hash)
        if block is not None:
            self._evict_useless(block)

    def has_checkpoint(self, block_hash: BlockHash) -> bool:
        """Whether the block is stored with one."""
        block = self._blocks.get(block_hash)
        return block is not None and block.has_checkpoint

    def take_lost_checkpoints(self) -> list[BlockId]:
        """Blocks that lost theirs, with themselves or alone, since this was last asked."""
        lost, self._lost_checkpoints = self._lost_checkpoints, []
        return lost

    def _lose_checkpoint(self, block: _Block) -> None:
        block.has_checkpoint = False
        self._used -= self._checkpoint_blocks
        self._lost_checkpoints.append(block.block_id)

    def set_capacity(self, capacity: int) -> None:
        """Blocks beyond it go, protected ones last; pinned ones stay even then."""
        self._capacity = capacity
        while self._used > capacity:
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

    def _make_room(self, blocks: int, beside: _Block | None) -> bool:
        """Lets blocks on probation go, but not the one beside which there is to be room, and those before it."""
        is_over = self._used > self._capacity  # for what is pinned
        if beside is not None:
            beside.pins += 1
        while not is_over and self._used + blocks > self._capacity:
            victim = self._pop_probation_leaf()
            if victim is None:
                break
            self._evict(victim)
        if beside is not None:
            beside.pins -= 1
        return self._used + blocks <= self._capacity

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
        """And all before it that lead nowhere any more."""
        self._remove(block)
        if block.parent is not None:
            self._evict_useless(block.parent)

    def _evict_useless(self, block: _Block) -> None:
        """Unless it has a checkpoint, or leads to one."""
        last: _Block | None = block
        while self._checkpoint_blocks and last is not None:
            if last.has_checkpoint or last.pins or self._has_children(last):
                break
            self._remove(last)
            last = last.parent

    def _remove(self, block: _Block) -> None:
        if block.is_protected:
            del self._protected[block.block_hash]
            self._protected_used -= self._cost(block)
        if block.has_checkpoint:
            self._lose_checkpoint(block)
        del self._blocks[block.block_hash]
        self._used -= 1
        self._evicted.append((block.block_id, block.block_hash))
        siblings = self._children[block.parent_hash]
        siblings.remove(block.key)
        if not siblings:
            del self._children[block.parent_hash]
        if block.parent is not None:
            self._note_leaf(block.parent)

    def _demote(self) -> None:
        while self._protected_used > self._capacity * PROTECTED_SHARE:
            _, block = self._protected.popitem(last=False)
            block.is_protected = False
            self._protected_used -= self._cost(block)
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
        assert self._used == sum(self._cost(block) for block in self._blocks.values())
        assert self._protected_used == sum(self._cost(block) for block in self._protected.values())
        assert self._protected_used <= self._capacity * PROTECTED_SHARE
        leaves = [block for block in self._blocks.values() if not self._has_children(block)]
        noted = set(self._probation)
        assert all(block.is_protected or (block.last_used, block.block_hash) in noted for block in leaves)
        assert len({block.block_id for block in self._blocks.values()}) == len(self._blocks)
