"""Frames to messages and back; malformed frames."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from message_samples import SAMPLES

from protocol import codec
from protocol.codec import Door, encode, pack_token_ids, unpack_token_ids
from protocol.errors import ProtocolError
from protocol.messages import TYPE_NUMBERS, Accepted, Card, GetCard, Heartbeat, Message

DOORS: list[Door] = [  # type: ignore[type-arg]
    codec.AT_COORDINATOR_FROM_CLIENT,
    codec.AT_COORDINATOR_FROM_ENGINE,
    codec.AT_CLIENT,
    codec.AT_ENGINE,
    codec.AT_OUTPUTS,
    codec.AT_SUBSCRIBER,
]
TYPE_BYTES = [bytes([number]) for number in TYPE_NUMBERS.values()]

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=15,
)
payloads = st.one_of(
    st.binary(max_size=60),
    st.lists(plain_values, max_size=10).map(msgspec.msgpack.encode),
    st.sampled_from([bytes(encode(sample)[1]) for sample in SAMPLES]).flatmap(
        lambda payload: st.integers(0, len(payload)).map(lambda cut: payload[:cut])
    ),
)
frame_lists = st.one_of(
    st.lists(st.binary(max_size=10), max_size=4),
    st.tuples(st.sampled_from(TYPE_BYTES), payloads).map(list),
    st.tuples(st.sampled_from(TYPE_BYTES), payloads, st.binary(max_size=10)).map(list),
)


@given(frame_lists)
@example([])
@example([b"", b""])
@example([b"\x05", b"\x91" * 100_000])
@example([b"\x03", b"\x91\xdd\xff\xff\xff\xff"])
@example([b"\x52", b"\xc1"])
def test_a_door_answers_garbage_with_protocol_error_only(frames: list[bytes]) -> None:
    for door in DOORS:
        try:
            received = door.decode(frames)
        except ProtocolError:
            continue
        assert isinstance(received.message, Message)


def test_a_door_takes_only_the_messages_of_its_link() -> None:
    assert codec.AT_CLIENT.decode(encode(Card("h"), b"x")).message == Card("h")
    with pytest.raises(ProtocolError, match="unknown message type"):
        codec.AT_ENGINE.decode(encode(Heartbeat()))
    with pytest.raises(ProtocolError, match="unknown message type"):
        codec.AT_ENGINE.decode(encode(GetCard("h")))


def test_the_frames_behind_the_payload_are_the_buffers() -> None:
    frames = encode(Card("h"), b"one", memoryview(b"two"))
    received = codec.AT_CLIENT.decode(frames)
    assert list(received.buffers) == [b"one", b"two"]
    assert received.frames is frames


def test_a_type_byte_must_stand_alone() -> None:
    type_byte, payload = encode(Heartbeat())
    with pytest.raises(ProtocolError):
        codec.AT_COORDINATOR_FROM_CLIENT.decode([bytes(type_byte) + b"\0", payload])


def test_errors_do_not_quote_what_came() -> None:
    secret = "a prompt"
    for frames in (
        [secret.encode(), b""],
        [b"\x04", msgspec.msgpack.encode([[secret]])],
        [b"\x11", msgspec.msgpack.encode([secret])],
    ):
        for door in DOORS:
            with pytest.raises(ProtocolError) as caught:
                door.decode(frames)
            assert secret not in str(caught.value)


def test_wrong_types_are_refused() -> None:
    payload = msgspec.msgpack.encode([["r", "not an attempt"], 1, "run"])
    with pytest.raises(ProtocolError, match="Expected `int`"):
        codec.AT_CLIENT.decode([bytes([TYPE_NUMBERS[Accepted]]), payload])


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_survive_the_wire(token_ids: list[int]) -> None:
    packed = pack_token_ids(token_ids)
    assert len(packed) == 4 * len(token_ids)
    assert list(unpack_token_ids(packed)) == token_ids
    assert list(unpack_token_ids(memoryview(packed))) == token_ids


def test_token_ids_are_little_endian() -> None:
    assert pack_token_ids([1, 2**24]) == b"\x01\0\0\0\0\0\0\x01"


@given(st.binary(max_size=20).filter(lambda raw: len(raw) % 4 != 0))
def test_token_ids_cut_off_are_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_token_ids(raw)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_token_ids_out_of_range_cannot_be_packed(token_id: int) -> None:
    with pytest.raises(OverflowError):
        pack_token_ids([token_id])
