"""What the prefix index keeps and what it lets go."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_core.device import BlockId
from engine_core.prefix_index import PrefixIndex
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash


def chain(name: str, blocks: int) -> list[BlockHash]:
    """A chain whose blocks are called after every letter of `name` so far, repeated: "ab" and "ac" share "a"."""
    hashes = [BlockHash(b"root")]
    for number in range(blocks):
        letters = name[: number + 1].ljust(number + 1, name[-1])
        hashes.append(BlockHash(letters.encode()))
    return hashes


def tokens_of(block_hash: BlockHash) -> list[int]:
    """What a block of these chains consists of: its letter, again and again."""
    return [block_hash[-1]] * BLOCK_TOKENS


def insert(index: PrefixIndex, hashes: list[BlockHash], place: int) -> BlockId | None:
    return index.insert(hashes[place], hashes[place - 1], tokens_of(hashes[place]), is_first=place == 1)


def store(index: PrefixIndex, hashes: list[BlockHash]) -> int:
    """Stores what is not stored yet; how many are stored then."""
    for place in range(index.matched(hashes) + 1, len(hashes)):
        if insert(index, hashes, place) is None:
            break
    index.check_invariants()
    return index.matched(hashes)


def share(index: PrefixIndex, hashes: list[BlockHash]) -> None:
    index.use(hashes[1:], protect=True)
    index.check_invariants()


def test_what_is_matched_is_the_longest_stored_prefix() -> None:
    index = PrefixIndex(10)
    store(index, chain("abc", 3))
    assert [index.matched(c) for c in (chain("abc", 2), chain("abc", 5), chain("abd", 3), chain("b", 2))] == [
        2,
        3,
        2,
        0,
    ]
    assert index.block_ids(chain("abc", 3)[1:]) == [0, 1, 2]


def test_a_block_without_its_parent_is_not_stored() -> None:
    index = PrefixIndex(10)
    assert insert(index, chain("ab", 2), 2) is None
    assert len(index) == 0


def test_the_longest_unused_end_goes_first() -> None:
    index = PrefixIndex(4)
    store(index, chain("ab", 2))
    store(index, chain("cd", 2))
    index.use(chain("ab", 2)[1:], protect=False)
    store(index, chain("e", 1))
    assert [index.matched(chain(name, 2)) for name in ("ab", "cd")] == [2, 1]
    assert index.take_evicted() == [(BlockId(3), chain("cd", 2)[2])]
    assert index.take_evicted() == []


def test_prompts_that_nobody_shares_take_no_shared_prefix_away() -> None:
    index = PrefixIndex(50)
    shared = chain("s", 30)
    store(index, shared)
    share(index, shared)
    for number in range(1_000):
        store(index, chain(chr(0x100 + number), 1 + number % 5))
    store(index, chain("z", 200))
    assert index.matched(shared) == 30
    assert index.matched(chain("z", 200)) == 20, "a chain too long for the rest is stored in part"


def test_a_prefix_that_is_shared_no_more_makes_room_for_one_that_is() -> None:
    index = PrefixIndex(50)
    old, new = chain("o", 30), chain("n", 20)
    store(index, old)
    share(index, old)
    store(index, new)
    share(index, new)
    for number in range(100):
        store(index, chain(chr(0x100 + number), 3))
    assert index.matched(new) == 20
    assert 20 <= index.matched(old) < 30, "80 % of 50 blocks are protected, the old prefix loses its end"


def test_a_pinned_block_keeps_all_before_it() -> None:
    index = PrefixIndex(5)
    hashes = chain("abc", 3)
    store(index, hashes)
    index.pin(hashes[2])
    index.set_capacity(0)
    index.check_invariants()
    assert index.matched(hashes) == 2
    assert insert(index, chain("x", 1), 1) is None
    index.unpin(hashes[2])
    index.set_capacity(0)
    assert len(index) == 0
    assert sorted(block_id for block_id, _ in index.take_evicted()) == [0, 1, 2]


def test_less_room_takes_protected_blocks_last() -> None:
    index = PrefixIndex(20)
    shared, other = chain("s", 5), chain("o", 5)
    store(index, shared)
    share(index, shared)
    store(index, other)
    index.set_capacity(7)
    assert (index.matched(shared), index.matched(other)) == (5, 2)
    index.set_capacity(3)
    assert (index.matched(shared), index.matched(other)) == (3, 0)


def test_unpinning_too_often_is_a_bug() -> None:
    index = PrefixIndex(5)
    store(index, chain("a", 1))
    with pytest.raises(AssertionError):
        index.unpin(chain("a", 1)[1])


def test_the_beginning_of_a_stored_block_is_found() -> None:
    index = PrefixIndex(10)
    root, block_hash = BlockHash(b"root"), BlockHash(b"a")
    index.insert(block_hash, root, range(BLOCK_TOKENS), is_first=True)
    assert index.most_alike(root, [0, 1, 2, 9]) == (block_hash, 3)
    assert index.most_alike(root, list(range(40))) == (block_hash, 40)
    assert index.most_alike(root, [1, 2]) is None
    assert index.most_alike(root, []) is None
    assert index.most_alike(block_hash, [0, 1]) is None
    index.set_capacity(0)
    assert index.most_alike(root, [0, 1]) is None, "it is gone"


def leave(index: PrefixIndex, hashes: list[BlockHash]) -> bool:
    """Stores the chain with a checkpoint at its end; whether it is there then."""
    if not index.can_keep(len(hashes) - 1 - index.matched(hashes)):
        return False
    if store(index, hashes) == len(hashes) - 1 and not index.has_checkpoint(hashes[-1]):
        index.add_checkpoint(hashes[-1])
    else:
        index.evict_useless(hashes[index.matched(hashes)])
    index.check_invariants()
    return index.has_checkpoint(hashes[-1])


def test_a_checkpoint_takes_room_and_goes_with_its_block_and_all_that_leads_nowhere_then() -> None:
    index = PrefixIndex(12, checkpoint_blocks=4)
    assert leave(index, chain("ab", 2)) and leave(index, chain("abc", 3))
    assert (index.used, index.last_checkpoint(chain("abcd", 4), 3), index.last_checkpoint(chain("abc", 3), 1)) == (
        11,
        3,
        0,
    )
    assert leave(index, chain("x", 1))
    assert index.matched(chain("abc", 3)) == 2, "the longest unused end is gone, the rest of its chain has a checkpoint"
    assert leave(index, chain("yyy", 3))
    assert index.matched(chain("abc", 3)) == 0, "both blocks at once: the first leads to no checkpoint any more"
    assert index.take_lost_checkpoints() == [BlockId(2), BlockId(1)]
    assert index.used == 12


def test_a_checkpoint_that_is_given_up_takes_its_chain_along_unless_it_was_shared() -> None:
    index = PrefixIndex(20, checkpoint_blocks=2)
    assert leave(index, chain("abc", 3)) and leave(index, chain("xyz", 3))
    share(index, chain("xyz", 3))
    for hashes in (chain("abc", 3), chain("xyz", 3), chain("q", 1)):
        index.remove_checkpoint(hashes[-1])
        index.check_invariants()
    assert (index.matched(chain("abc", 3)), index.last_checkpoint(chain("xyz", 3), 3)) == (0, 3)


def test_a_checkpoint_for_which_protected_blocks_would_have_to_go_is_not_kept() -> None:
    index = PrefixIndex(10, checkpoint_blocks=4)
    assert leave(index, chain("ab", 2))
    share(index, chain("ab", 2))
    assert not leave(index, chain("x", 1))
    assert (index.last_checkpoint(chain("ab", 2), 2), index.take_evicted()) == (2, [])


CHAINS = st.builds(chain, st.text("abc", min_size=1, max_size=6), st.integers(1, 12))


class IndexMachine(RuleBasedStateMachine):
    """Any order of stores, uses, pins and changes of capacity; a model keeps which ids must be there."""

    checkpoint_blocks = 0

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(8, self.checkpoint_blocks)
        self.present: dict[BlockHash, BlockId] = {}
        self.pinned: list[list[BlockHash]] = []
        """What somebody knows who only follows the changes."""

    @rule(hashes=CHAINS)
    def store(self, hashes: list[BlockHash]) -> None:
        for place in range(self.index.matched(hashes) + 1, len(hashes)):
            block_id = insert(self.index, hashes, place)
            self.forget_evicted()
            if block_id is None:
                return
            assert block_id not in self.present.values()
            self.present[hashes[place]] = block_id

    @rule(hashes=CHAINS, protect=st.booleans())
    def use(self, hashes: list[BlockHash], protect: bool) -> None:
        self.index.use(hashes[1 : 1 + self.index.matched(hashes)], protect=protect)

    @rule(hashes=CHAINS)
    def pin(self, hashes: list[BlockHash]) -> None:
        matched = self.index.matched(hashes)
        if matched:
            self.index.pin(hashes[matched])
            self.pinned.append(hashes[1 : matched + 1])

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        hashes = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.index.unpin(hashes[-1])

    @rule(capacity=st.integers(0, 20))
    def set_capacity(self, capacity: int) -> None:
        self.index.set_capacity(capacity)
        self.forget_evicted()
        assert set(self.present) <= {h for hashes in self.pinned for h in hashes} or self.index.used <= capacity

    def forget_evicted(self) -> None:
        for block_id, block_hash in self.index.take_evicted():
            assert self.present.pop(block_hash) == block_id

    @invariant()
    def sound(self) -> None:
        self.index.check_invariants()
        assert len(self.index) == len(self.present)
        assert all(h in self.present for hashes in self.pinned for h in hashes), "a pinned block is gone"


class CheckpointMachine(IndexMachine):
    """The same, with checkpoints that come and go."""

    checkpoint_blocks = 3

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: dict[BlockHash, BlockId] = {}

    @rule(hashes=CHAINS)
    def leave_checkpoint(self, hashes: list[BlockHash]) -> None:
        matched = self.index.matched(hashes)
        if matched and not self.index.has_checkpoint(hashes[matched]):
            block_id = self.index.add_checkpoint(hashes[matched])
            self.forget_evicted()
            if block_id is not None:
                self.checkpoints[hashes[matched]] = block_id

    @rule(hashes=CHAINS)
    def give_up(self, hashes: list[BlockHash]) -> None:
        self.index.remove_checkpoint(hashes[-1])
        self.forget_evicted()

    def forget_evicted(self) -> None:
        super().forget_evicted()
        lost = self.index.take_lost_checkpoints()
        assert set(lost) <= set(self.checkpoints.values())
        self.checkpoints = {h: block_id for h, block_id in self.checkpoints.items() if block_id not in lost}

    @invariant()
    def checkpoints_agree(self) -> None:
        assert all(self.index.has_checkpoint(h) and h in self.present for h in self.checkpoints)
        assert self.index.used == len(self.present) + 3 * len(self.checkpoints)


IndexMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestIndexMachine = IndexMachine.TestCase
CheckpointMachine.TestCase.settings = IndexMachine.TestCase.settings
TestCheckpointMachine = CheckpointMachine.TestCase
