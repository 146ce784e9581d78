"""What has come into the prefix cache and gone from it since the coordinator was last told. Pure."""

from protocol.prefix_hash import BlockHash

BlockChanges = dict[BlockHash, bool]
"""Blocks that were stored (true) or evicted (false) between two reports; their order means nothing."""


class ChangeLog:
    """Owner of what can be restored, in RAM or on the SSD, and of what was not reported of it yet.

    Only the difference to the last report is kept, so there is never more of it than was and is stored.
    """

    def __init__(self) -> None:
        self._copies: dict[BlockHash, int] = {}
        """In how many places each block is, RAM and SSD."""
        self._changes: BlockChanges = {}

    def stored(self, block_hash: BlockHash) -> None:
        """The block is in one place more."""
        copies = self._copies[block_hash] = self._copies.get(block_hash, 0) + 1
        if copies == 1:
            self._note(block_hash, is_stored=True)

    def evicted(self, block_hash: BlockHash) -> None:
        """The block is in one place less."""
        copies = self._copies[block_hash] = self._copies[block_hash] - 1
        if not copies:
            del self._copies[block_hash]
            self._note(block_hash, is_stored=False)

    def _note(self, block_hash: BlockHash, *, is_stored: bool) -> None:
        """What is undone before it was told is no change."""
        if self._changes.pop(block_hash, None) is None:
            self._changes[block_hash] = is_stored

    def take(self) -> BlockChanges:
        """What has changed since this was last asked."""
        changes, self._changes = self._changes, {}
        return changes

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert all(copies > 0 for copies in self._copies.values())
        assert all((block_hash in self._copies) == is_stored for block_hash, is_stored in self._changes.items())
