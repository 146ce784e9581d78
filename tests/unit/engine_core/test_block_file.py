"""A block's file holds what was written, and is believed only when all of it is right."""

from pathlib import Path

import hypothesis.strategies as st
import mlx.core as mx
import msgspec
import pytest
from block_samples import DATA_BYTES, FORMAT, PARTS, sample_chain, sample_data, sample_write
from hypothesis import given

from engine_core.block_file import BlockFormat, DamagedBlock
from protocol.prefix_hash import BlockHash

WRITE = sample_write(1, place=2)
CONTENT = b"".join(FORMAT.encode(WRITE, sample_data(7)))


def test_what_was_written_is_read() -> None:
    block = FORMAT.decode(CONTENT, WRITE.block_hash, WRITE.parent)
    assert list(block.token_ids) == list(WRITE.token_ids)
    assert [bytes(array) for array in block.data] == [bytes(array) for array in sample_data(7)]


def test_it_is_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    path.write_bytes(CONTENT)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    assert [(arrays[name].dtype, arrays[name].shape) for name in ("0", "1")] == [
        (mx.bfloat16, PARTS[0].shape),
        (mx.float32, PARTS[1].shape),
    ]
    assert memoryview(arrays["0"].view(mx.uint8)).tobytes() == sample_data(7)[0]
    assert metadata["block"] == WRITE.block_hash.hex()


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, change: int) -> None:
    changed = bytearray(CONTENT)
    changed[place] ^= change
    try:
        block = FORMAT.decode(bytes(changed), WRITE.block_hash, WRITE.parent)
    except DamagedBlock:
        return
    # White space in the header, or a letter's case in a hexadecimal number, means nothing.
    assert place < len(CONTENT) - DATA_BYTES
    assert [bytes(array) for array in block.data] == [bytes(array) for array in sample_data(7)]


@given(st.integers(0, len(CONTENT) - 1))
def test_a_file_that_was_cut_off_is_damaged(length: int) -> None:
    with pytest.raises(DamagedBlock):
        FORMAT.decode(CONTENT[:length], WRITE.block_hash, WRITE.parent)


@given(st.binary(max_size=200))
def test_rubbish_is_damaged(content: bytes) -> None:
    for prefix in (b"", len(content).to_bytes(8, "little")):
        with pytest.raises(DamagedBlock):
            FORMAT.decode(prefix + content, WRITE.block_hash, WRITE.parent)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (BlockFormat("0123abce", PARTS), "another model"),
        (BlockFormat("0123abcd", PARTS[::-1]), "another form"),
        (BlockFormat("0123abcd", PARTS[:1]), "another form"),
    ],
)
def test_a_block_of_another_model_or_form_is_none_of_ours(other: BlockFormat, complaint: str) -> None:
    with pytest.raises(DamagedBlock, match=complaint):
        other.decode(CONTENT, WRITE.block_hash, WRITE.parent)


def test_a_block_under_another_name_is_damaged() -> None:
    other = sample_write(2, place=2)
    with pytest.raises(DamagedBlock, match="another block"):
        FORMAT.decode(CONTENT, other.block_hash, WRITE.parent)
    with pytest.raises(DamagedBlock, match="another block"):
        FORMAT.decode(CONTENT, WRITE.block_hash, other.parent)


def test_tokens_that_do_not_give_the_hash_are_not_believed() -> None:
    chain, tokens = sample_chain(1, 2)
    forged = msgspec.structs.replace(WRITE, token_ids=tokens[0])
    content = b"".join(FORMAT.encode(forged, sample_data(7)))
    with pytest.raises(DamagedBlock, match="token ids"):
        FORMAT.decode(content, WRITE.block_hash, chain[1])
    other_hash = BlockHash(bytes(32))
    content = b"".join(FORMAT.encode(msgspec.structs.replace(WRITE, block_hash=other_hash), sample_data(7)))
    with pytest.raises(DamagedBlock, match="token ids"):
        FORMAT.decode(content, other_hash, WRITE.parent)
