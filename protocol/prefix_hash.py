"""Names of prompt prefixes: a SHA-256 chain over blocks of 64 token ids.

The hash of a block stands for its tokens, for all tokens before it, and for all else on which their KV depends. So
equal hashes mean equal KV, in every process and after a restart, and without the salt of a prefix nobody can find out
whether others have sent it.
"""

import hashlib
from collections.abc import Sequence
from typing import NewType

from protocol.codec import pack_token_ids

BLOCK_TOKENS = 64

BlockHash = NewType("BlockHash", bytes)
"""32 bytes: of a block and all before it, or of no block yet (the root of a chain)."""

_DOMAIN = "shoal prefix 1"
"""Changed whenever the same hash would mean something else."""


def prefix_root(card_hash: str, adapter: str, cache_salt: str) -> BlockHash:
    """What the first block follows: the model (by its card's hash), the adapter ("" for none), the request's salt."""
    seed = hashlib.sha256()
    for field in (_DOMAIN, card_hash, adapter, cache_salt):
        content = field.encode("utf-8", "surrogatepass")
        seed.update(len(content).to_bytes(8, "little") + content)  # with lengths, "ab" + "c" is not "a" + "bc"
    return BlockHash(seed.digest())


def next_block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of the block of these BLOCK_TOKENS ids that follows `parent`."""
    assert len(token_ids) == BLOCK_TOKENS
    return BlockHash(hashlib.sha256(parent + pack_token_ids(token_ids)).digest())


def prefix_chain(root: BlockHash, token_ids: Sequence[int]) -> list[BlockHash]:
    """`root` and then the hash of each whole block of `token_ids`."""
    chain = [root]
    for start in range(0, len(token_ids) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS):
        chain.append(next_block_hash(chain[-1], token_ids[start : start + BLOCK_TOKENS]))
    return chain
