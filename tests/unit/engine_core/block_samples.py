"""Blocks for tests of the SSD tier: small, and different from one another."""

import random

from engine_core.block_file import BlockFormat
from engine_core.device import BlockId, BlockPart
from engine_core.ssd_tier import BlockWrite
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash, prefix_chain, prefix_root

PARTS = (BlockPart("BF16", (2, 1, BLOCK_TOKENS, 4)), BlockPart("F32", (1, 1, BLOCK_TOKENS, 2)))
FORMAT = BlockFormat("0123abcd", PARTS)
DATA_BYTES = 2 * BLOCK_TOKENS * 4 * 2 + BLOCK_TOKENS * 2 * 4


def sample_data(seed: int) -> list[memoryview]:
    """The arrays of a block."""
    draw = random.Random(seed)
    return [memoryview(draw.randbytes(part.nbytes)) for part in PARTS]


def sample_chain(name: int, blocks: int) -> tuple[list[BlockHash], list[list[int]]]:
    """The hashes of a chain, root first, and the tokens of its blocks."""
    tokens = [[name * 1_000 + number] * BLOCK_TOKENS for number in range(blocks)]
    return prefix_chain(prefix_root("card", "", ""), [token for block in tokens for token in block]), tokens


def sample_write(name: int, place: int = 1) -> BlockWrite:
    """Block `place` of a chain."""
    chain, tokens = sample_chain(name, place)
    return BlockWrite(BlockId(name * 100 + place), chain[place], chain[place - 1], tokens[place - 1])
