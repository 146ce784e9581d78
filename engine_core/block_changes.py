"""What has come into the prefix store and gone from it since the coordinator was last told. Pure."""

import msgspec

from protocol.prefix_hash import BlockHash


class BlockChanges(msgspec.Struct, frozen=True):
    """Between two reports."""

    stored: list[BlockHash]
    """In the order in which they came: none before its parent."""
    evicted: list[BlockHash]


class ChangeLog:
    """Owner of what can be restored, in RAM or on the SSD, and of what was reported of it.

    Only the difference to the last report is kept, so there is never more of it than was and is stored.
    """

    def __init__(self) -> None:
        self._copies: dict[BlockHash, int] = {}
        """In how many places each block is, RAM and SSD."""
        self._stored: dict[BlockHash, None] = {}
        self._evicted: dict[BlockHash, None] = {}

    def stored(self, block_hash: BlockHash) -> None:
        """The block is in one place more."""
        copies = self._copies[block_hash] = self._copies.get(block_hash, 0) + 1
        if copies > 1:
            return
        if block_hash in self._evicted:
            del self._evicted[block_hash]
        else:
            self._stored[block_hash] = None

    def evicted(self, block_hash: BlockHash) -> None:
        """The block is in one place less."""
        copies = self._copies[block_hash] = self._copies[block_hash] - 1
        if copies:
            return
        del self._copies[block_hash]
        if block_hash in self._stored:
            del self._stored[block_hash]
        else:
            self._evicted[block_hash] = None

    def take(self) -> BlockChanges | None:
        """What has changed since this was last asked; None for nothing."""
        if not (self._stored or self._evicted):
            return None
        changes = BlockChanges(list(self._stored), list(self._evicted))
        self._stored, self._evicted = {}, {}
        return changes

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert all(copies > 0 for copies in self._copies.values())
        assert self._stored.keys() <= self._copies.keys()
        assert not self._evicted.keys() & self._copies.keys()
