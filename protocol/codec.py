"""Frames to messages and back: typed at every door, no pickle anywhere."""

import sys
from array import array
from collections.abc import Sequence
from types import UnionType
from typing import Generic, TypeVar, get_args

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import (
    TYPE_NUMBERS,
    ClientToCoordinator,
    ClusterSnapshot,
    CoordinatorToAll,
    CoordinatorToClient,
    CoordinatorToEngine,
    EngineToClient,
    EngineToCoordinator,
    Message,
)

Frame = bytes | memoryview

_TYPE_BYTES = {message_type: bytes([number]) for message_type, number in TYPE_NUMBERS.items()}
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M")


class Received(msgspec.Struct, Generic[M], frozen=True, gc=False):
    """A decoded message with the frames it came in, so that it can be handed on as it is."""

    message: M
    frames: Sequence[Frame]

    @property
    def buffers(self) -> Sequence[Frame]:
        """The buffers behind the payload."""
        return self.frames[2:]


def encode(message: Message, *buffers: Frame) -> list[Frame]:
    """`[type byte][payload][buffer]...`, ready for send_multipart."""
    return [_TYPE_BYTES[type(message)], _encoder.encode(message), *buffers]


class Door(Generic[M]):
    """Decodes what one end of a link may receive; anything else is a ProtocolError."""

    def __init__(self, name: str, allowed: UnionType | type[Message]) -> None:
        """`name` is who sends here, for error texts; `allowed` the union of the link's direction."""
        self.name = name
        types = get_args(allowed) or (allowed,)
        self._decoders = {_TYPE_BYTES[t]: msgspec.msgpack.Decoder(t) for t in types}

    def decode(self, frames: Sequence[Frame]) -> Received[M]:
        """The message in `frames` (without routing identity). Raises ProtocolError, whose text never quotes them."""
        if len(frames) < 2:
            raise ProtocolError(f"{self.name}: {len(frames)} frame(s) instead of at least 2")
        decoder = self._decoders.get(bytes(frames[0][:2]))
        if decoder is None:
            raise ProtocolError(f"{self.name}: unknown message type ({_describe(frames[0])})")
        try:
            return Received(decoder.decode(frames[1]), frames)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProtocolError(f"{self.name}: {error}") from error


def _describe(type_frame: Frame) -> str:
    return f"byte {type_frame[0]}" if len(type_frame) == 1 else f"{len(type_frame)} bytes"


AT_COORDINATOR_FROM_CLIENT: Door[ClientToCoordinator] = Door("clients", ClientToCoordinator)
AT_COORDINATOR_FROM_ENGINE: Door[EngineToCoordinator] = Door("engines", EngineToCoordinator)
AT_CLIENT: Door[CoordinatorToClient] = Door("coordinator", CoordinatorToClient)
AT_ENGINE: Door[CoordinatorToEngine] = Door("coordinator", CoordinatorToEngine)
AT_OUTPUTS: Door[EngineToClient] = Door("outputs", EngineToClient)
AT_SUBSCRIBER: Door[CoordinatorToAll] = Door("cluster", CoordinatorToAll)


SNAPSHOT_TOPIC = _TYPE_BYTES[ClusterSnapshot]
"""What to subscribe to on the cluster link for snapshots alone."""
TOKEN_ID_BYTES = 4
"""Of one token id in a prompt buffer."""


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Unsigned 32-bit little-endian. Raises OverflowError for a negative or larger id: ids are checked before."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_token_ids(buffer: Frame) -> "array[int]":
    """Inverse of pack_token_ids. Raises ProtocolError on a length that is not a multiple of 4."""
    unpacked = array("I")
    try:
        unpacked.frombytes(buffer)
    except ValueError as error:
        raise ProtocolError(f"token ids: {error}") from error
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked
