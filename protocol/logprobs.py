"""Log probabilities of sampled tokens, and how they travel: packed arrays, only for requests that asked."""

import sys
from array import array
from collections.abc import Sequence

import msgspec

from protocol.errors import ProtocolError

MAX_LOGPROBS = 20
"""Most alternatives of a token (OpenAI API reference, top_logprobs)."""
LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON has not."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """For one sampled token: natural logarithms of probabilities before bias, penalties, temperature and filters."""

    logprob: float
    """Of the sampled token."""
    rank: int
    """Of the sampled token: 1 for the likeliest."""
    top_ids: Sequence[int]
    """As many as the request asked for (all, when the vocabulary has fewer), the likeliest first."""
    top_logprobs: Sequence[float]


class PackedLogprobs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Of the new tokens of one output, in their order. Buffers are little-endian, 4 bytes a number."""

    tops: int
    """Alternatives of each token."""
    logprobs: bytes
    """float32 [tokens]."""
    ranks: bytes
    """uint32 [tokens]."""
    top_ids: bytes = b""
    """uint32 [tokens x tops], token by token."""
    top_logprobs: bytes = b""
    """float32 [tokens x tops]."""


def pack_logprobs(tokens: Sequence[TokenLogprobs]) -> PackedLogprobs:
    """Packs those of one request, which all have the same number of alternatives."""
    tops = len(tokens[0].top_ids) if tokens else 0
    assert all(len(token.top_ids) == len(token.top_logprobs) == tops for token in tokens)
    return PackedLogprobs(
        tops,
        _packed(array("f", [token.logprob for token in tokens])),
        _packed(array("I", [token.rank for token in tokens])),
        _packed(array("I", [token_id for token in tokens for token_id in token.top_ids])),
        _packed(array("f", [logprob for token in tokens for logprob in token.top_logprobs])),
    )


def unpack_logprobs(packed: PackedLogprobs, num_tokens: int) -> list[TokenLogprobs]:
    """Inverse of pack_logprobs. Raises ProtocolError when the buffers are not those of `num_tokens` tokens."""
    logprobs = _unpacked("f", packed.logprobs, num_tokens)
    ranks = _unpacked("I", packed.ranks, num_tokens)
    top_ids = _unpacked("I", packed.top_ids, num_tokens * packed.tops)
    top_logprobs = _unpacked("f", packed.top_logprobs, num_tokens * packed.tops)
    return [
        TokenLogprobs(
            logprobs[i],
            int(ranks[i]),
            [int(token_id) for token_id in top_ids[i * packed.tops : (i + 1) * packed.tops]],
            list(top_logprobs[i * packed.tops : (i + 1) * packed.tops]),
        )
        for i in range(num_tokens)
    ]


def _packed(numbers: "array[int] | array[float]") -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(kind: str, buffer: bytes, count: int) -> "array[float]":
    numbers: array[float] = array(kind)
    if len(buffer) != count * numbers.itemsize:
        raise ProtocolError(f"logprobs: {len(buffer)} bytes instead of {count} numbers of {numbers.itemsize}")
    numbers.frombytes(buffer)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
