"""The blocks that follow the same parent, and which of them begins most like other tokens. Pure.

The KV of the first tokens of a block is as good for whoever shares only these. Kept in the order of their tokens, the
block that shares most with any other tokens is beside the place where those would stand: two comparisons find it,
however many siblings there are.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NewType

from protocol.prefix_hash import BlockHash

TokenKey = NewType("TokenKey", bytes)
"""Token ids, 4 bytes each, most significant first: their order as bytes is their order as numbers."""

_TOKEN_BYTES = 4


def token_key(token_ids: Sequence[int]) -> TokenKey:
    """Of up to a block's tokens."""
    words = array("I", token_ids)
    if sys.byteorder == "little":
        words.byteswap()
    return TokenKey(words.tobytes())


def shared_length(one: TokenKey, other: TokenKey) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    difference = int.from_bytes(one[:length]) ^ int.from_bytes(other[:length])
    return (8 * length - difference.bit_length()) // (8 * _TOKEN_BYTES)


class BlockSiblings:
    """Owner of the order. No two siblings have the same tokens: their hash would be the same."""

    __slots__ = ("_hashes", "_keys")

    def __init__(self) -> None:
        self._keys: list[TokenKey] = []
        self._hashes: list[BlockHash] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: TokenKey, block_hash: BlockHash) -> None:
        """One more."""
        at = bisect_left(self._keys, key)
        assert self._keys[at : at + 1] != [key], "the block is there already"
        self._keys.insert(at, key)
        self._hashes.insert(at, block_hash)

    def remove(self, key: TokenKey) -> None:
        """One less."""
        at = bisect_left(self._keys, key)
        assert self._keys[at] == key
        del self._keys[at], self._hashes[at]

    def most_alike(self, key: TokenKey) -> tuple[BlockHash, int] | None:
        """The one that shares most tokens with these, and how many; None when none shares the first."""
        at = bisect_left(self._keys, key)
        nearest = [(shared_length(self._keys[i], key), i) for i in (at - 1, at) if 0 <= i < len(self._keys)]
        shared, index = max(nearest, default=(0, -1))
        return (self._hashes[index], shared) if shared else None

    def check_invariants(self) -> None:
        """Raises AssertionError when the order is broken."""
        assert len(self._keys) == len(self._hashes)
        assert all(a < b for a, b in zip(self._keys, self._keys[1:], strict=False))
