"""What the coordinator may go by when it picks an engine core: the prompt's blocks, and what the caller says."""

import asyncio
from collections.abc import Sequence

import msgspec

from api_server.served_model import ServedModel
from protocol.codec import pack_token_ids
from protocol.prefix_hash import packed_block_keys, prefix_root

LONG_PROMPT_TOKENS = 131_072
"""Prompts above this are hashed in a thread. This many take 3.5 ms (2 GHz x86): longer would be felt by every running
stream."""


class Placement(msgspec.Struct, frozen=True):
    """Hints; nothing but the choice of the engine core depends on them."""

    session_key: str = ""
    engine_rank: int = -1
    """Index of the wanted engine core; -1 for any."""
    block_keys: bytes = b""
    """Of the prompt's whole blocks (protocol.prefix_hash.packed_block_keys)."""


async def with_block_keys(
    placement: Placement, model: ServedModel, prompt_ids: Sequence[int], cache_salt: str
) -> Placement:
    """With the keys of a prompt's blocks, found without holding up the event loop when it is long."""
    if len(prompt_ids) <= LONG_PROMPT_TOKENS:
        keys = _block_keys(model.card_hash, prompt_ids, cache_salt)
    else:
        keys = await asyncio.to_thread(_block_keys, model.card_hash, prompt_ids, cache_salt)
    return msgspec.structs.replace(placement, block_keys=keys)


def _block_keys(card_hash: str, prompt_ids: Sequence[int], cache_salt: str) -> bytes:
    return packed_block_keys(prefix_root(card_hash, "", cache_salt), pack_token_ids(prompt_ids))
