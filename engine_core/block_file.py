"""A block of KV as a safetensors file: bytes in, bytes out.

The format is that of https://github.com/huggingface/safetensors: 8 bytes with the length of a JSON header, the header,
the arrays. It is written and read here because the package of that name knows bfloat16 only by way of torch, and its
raw interface, which takes bytes, has changed from release to release. mx.load and the package read these files.

A file is believed only as far as it proves itself: the model, the layout and the parent must be the reader's own, the
token ids must give the hash by which the file was asked for, and the checksum must be that of all the rest.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from engine_core.device import BlockData, BlockPart
from engine_core.ssd_tier import BlockWrite, ReadBlock
from protocol.codec import pack_token_ids, unpack_token_ids
from protocol.errors import ProtocolError
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash, next_block_hash

FORMAT_VERSION = 1
"""Changed whenever an older file would be read wrongly."""
MAX_HEADER_BYTES = 65_536
_LENGTH_BYTES = 8
_ALIGNMENT = 8

Buffer = bytes | memoryview


class DamagedBlock(Exception):
    """What was read is not the block that was asked for; the message says what is wrong with it."""


class _Metadata(msgspec.Struct, frozen=True):
    """All text, as the format wants it."""

    format: str
    model: str
    block: str
    parent: str
    tokens: str
    """Token ids, 4 bytes each, little-endian, in hexadecimal."""
    sha256: str


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class BlockFormat(msgspec.Struct, frozen=True):
    """What all blocks of an engine core have in common."""

    model: str
    """Stands for the weights and for all else on which KV depends (engine_core.model_fingerprint)."""
    parts: Sequence[BlockPart]

    @property
    def data_bytes(self) -> int:
        """Of a block, without its header."""
        return sum(part.nbytes for part in self.parts)

    @property
    def most_bytes(self) -> int:
        """Of a file."""
        return _LENGTH_BYTES + MAX_HEADER_BYTES + self.data_bytes

    def encode(self, write: BlockWrite, data: BlockData) -> list[Buffer]:
        """A file, in pieces to be written one after the other."""
        tokens = pack_token_ids(write.token_ids)
        metadata = _Metadata(
            format=_format_name(),
            model=self.model,
            block=write.block_hash.hex(),
            parent=write.parent.hex(),
            tokens=tokens.hex(),
            sha256=self._checksum(write.block_hash, write.parent, tokens, data),
        )
        header = msgspec.json.encode({"__metadata__": metadata} | self._tensors())
        header += b" " * (-len(header) % _ALIGNMENT)
        return [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *data]

    def decode(self, content: bytes, block_hash: BlockHash, parent: BlockHash) -> ReadBlock:
        """The block in a file. Raises DamagedBlock for anything but the block that follows `parent` of that hash."""
        header, data = _split(content)
        metadata = self._check_header(header)
        if (metadata.block, metadata.parent) != (block_hash.hex(), parent.hex()):
            raise DamagedBlock("it is another block")
        try:
            tokens = bytes.fromhex(metadata.tokens)
            token_ids = unpack_token_ids(tokens)
        except (ValueError, ProtocolError) as error:
            raise DamagedBlock(f"its token ids: {error}") from error
        if len(token_ids) != BLOCK_TOKENS or next_block_hash(parent, token_ids) != block_hash:
            raise DamagedBlock("its token ids are not those of its hash")
        arrays = self._cut(data)
        if self._checksum(block_hash, parent, tokens, arrays) != metadata.sha256:
            raise DamagedBlock("the checksum is wrong")
        return ReadBlock(token_ids, arrays)

    def _check_header(self, header: memoryview) -> _Metadata:
        try:
            entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            metadata = msgspec.json.decode(entries.pop("__metadata__", b"null"), type=_Metadata)
            tensors = {name: msgspec.json.decode(entry, type=_Tensor) for name, entry in entries.items()}
        except msgspec.DecodeError as error:
            raise DamagedBlock(f"its header: {error}") from error
        if (metadata.format, metadata.model) != (_format_name(), self.model):
            raise DamagedBlock("it is of another model or format")
        if tensors != self._tensors():
            raise DamagedBlock("its arrays have another form")
        return metadata

    def _cut(self, data: memoryview) -> list[memoryview]:
        if data.nbytes != self.data_bytes:
            raise DamagedBlock(f"it has {data.nbytes} bytes of arrays instead of {self.data_bytes}")
        return [data[slice(*tensor.data_offsets)] for tensor in self._tensors().values()]

    def _tensors(self) -> dict[str, _Tensor]:
        tensors, end = {}, 0
        for number, part in enumerate(self.parts):
            tensors[str(number)] = _Tensor(part.dtype, tuple(part.shape), (end, end + part.nbytes))
            end += part.nbytes
        return tensors

    def _checksum(self, block_hash: BlockHash, parent: BlockHash, tokens: bytes, data: BlockData) -> str:
        digest = hashlib.sha256(f"{_format_name()}\n{self.model}\n".encode() + block_hash + parent + tokens)
        for array in data:
            digest.update(array)
        return digest.hexdigest()


def _format_name() -> str:
    return f"shoal block {FORMAT_VERSION}"


def _split(content: bytes) -> tuple[memoryview, memoryview]:
    view = memoryview(content)
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(view) < _LENGTH_BYTES or length > MAX_HEADER_BYTES or start > len(view):
        raise DamagedBlock("its header is cut off")
    return view[_LENGTH_BYTES:start], view[start:]
