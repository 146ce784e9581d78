"""What the coordinator is told of stored blocks: changes as they come, and the whole after each Welcome. Pure.

Kept here, beside the socket, and not only by the scheduler, so that the whole can be told while a long step runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from engine_core.block_changes import BlockChanges
from protocol.messages import BlocksChanged
from protocol.prefix_hash import BlockKey, block_key

MAX_KEYS_PER_MESSAGE = 1_024
"""The coordinator takes 2 ms for so many (2 GHz x86), and has time for others between two messages."""


class BlockMessage(msgspec.Struct, frozen=True):
    """One message with its buffers: keys of stored and of evicted blocks."""

    message: BlocksChanged
    buffers: tuple[bytes, bytes]


class BlockReport:
    """Owner of the list of what is stored, and of the numbers of the messages about it."""

    def __init__(self) -> None:
        self._stored: dict[BlockKey, None] = {}
        self._sequence = 0

    def take(self, changes: BlockChanges) -> list[BlockMessage]:
        """Notes changes; returns the messages that tell of them."""
        stored = [block_key(block_hash) for block_hash, is_stored in changes.items() if is_stored]
        evicted = [block_key(block_hash) for block_hash, is_stored in changes.items() if not is_stored]
        for key in evicted:
            self._stored.pop(key, None)
        self._stored.update(dict.fromkeys(stored))
        gone = [self._message((), piece) for piece in _pieces(evicted)]
        return gone + [self._message(piece, ()) for piece in _pieces(stored)]

    def whole(self) -> list[BlockMessage]:
        """The messages that tell of all that is stored; at least one, also when nothing is."""
        pieces = list(_pieces(self._stored)) or [()]
        return [self._message(piece, (), anew=place == 0) for place, piece in enumerate(pieces)]

    def _message(self, stored: Sequence[BlockKey], evicted: Sequence[BlockKey], anew: bool = False) -> BlockMessage:
        message = BlocksChanged(self._sequence, anew)
        self._sequence += 1
        return BlockMessage(message, (b"".join(stored), b"".join(evicted)))


def _pieces(keys: Iterable[BlockKey]) -> Iterator[Sequence[BlockKey]]:
    iterator = iter(keys)
    while piece := tuple(islice(iterator, MAX_KEYS_PER_MESSAGE)):
        yield piece
