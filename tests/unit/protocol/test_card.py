"""Model cards, packed and unpacked."""

import hashlib
import zlib

import msgspec
import pytest

from protocol import card
from protocol.card import GenerationDefaults, ModelCard, pack_card, unpack_card
from protocol.errors import ProtocolError

CARD = ModelCard(
    name="m",
    max_model_len=2048,
    vocab_size=100,
    tokenizer_json="{}" * 1000,
    eos_token_ids=(1, 2),
    chat_template="{{ messages }}",
    special_tokens={"bos_token": "<s>"},
    adds_special_tokens=False,
    defaults=GenerationDefaults(temperature=0.5, top_k=40),
    created=1,
)


def packed_from(raw: bytes) -> tuple[bytes, str]:
    return zlib.compress(raw), hashlib.sha256(raw).hexdigest()


def test_a_card_survives_packing_and_gets_smaller() -> None:
    content_hash, packed = pack_card(CARD)
    assert unpack_card(packed, content_hash) == CARD
    assert unpack_card(memoryview(packed), content_hash) == CARD
    assert len(packed) < len(CARD.tokenizer_json)


def test_the_hash_depends_on_the_content_alone() -> None:
    assert pack_card(CARD) == pack_card(msgspec.structs.replace(CARD))
    assert pack_card(CARD)[0] != pack_card(msgspec.structs.replace(CARD, vocab_size=101))[0]


def test_a_card_with_defaults_only_survives_packing() -> None:
    bare = ModelCard("m", 1, 1, "{}", ())
    content_hash, packed = pack_card(bare)
    assert unpack_card(packed, content_hash) == bare


@pytest.mark.parametrize("position", [0, 1, 20, -1])
def test_a_damaged_card_is_refused(position: int) -> None:
    content_hash, packed = pack_card(CARD)
    damaged = bytearray(packed)
    damaged[position] ^= 0xFF
    with pytest.raises(ProtocolError):
        unpack_card(bytes(damaged), content_hash)


def test_a_card_cut_off_is_refused() -> None:
    content_hash, packed = pack_card(CARD)
    for length in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ProtocolError):
            unpack_card(packed[:length], content_hash)


def test_another_card_than_the_one_named_is_refused() -> None:
    _, packed = pack_card(CARD)
    with pytest.raises(ProtocolError, match="content hash"):
        unpack_card(packed, "0" * 64)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "MAX_CARD_BYTES", 1000)
    packed, content_hash = packed_from(bytes(1001))
    with pytest.raises(ProtocolError, match="larger than 1000 bytes"):
        unpack_card(packed, content_hash)


def test_what_is_no_card_is_refused() -> None:
    for raw in (b"", b"\xc1", msgspec.msgpack.encode({"name": 5}), msgspec.msgpack.encode([1, 2])):
        packed, content_hash = packed_from(raw)
        with pytest.raises(ProtocolError, match="model card"):
            unpack_card(packed, content_hash)
