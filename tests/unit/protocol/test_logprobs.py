import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.logprobs import MAX_LOGPROBS, PackedLogprobs, TokenLogprobs, pack_logprobs, unpack_logprobs

FLOATS = st.floats(width=32, allow_nan=False, max_value=0)
IDS = st.integers(0, 2**32 - 1)


@st.composite
def tokens_of_a_request(draw: st.DrawFn) -> list[TokenLogprobs]:
    tops = draw(st.integers(0, MAX_LOGPROBS))
    return [
        TokenLogprobs(
            draw(FLOATS),
            draw(st.integers(1, 2**32 - 1)),
            draw(st.lists(IDS, min_size=tops, max_size=tops)),
            draw(st.lists(FLOATS, min_size=tops, max_size=tops)),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]


@given(tokens_of_a_request())
def test_what_is_packed_comes_out_again(tokens: list[TokenLogprobs]) -> None:
    wire = msgspec.msgpack.encode(pack_logprobs(tokens))
    assert unpack_logprobs(msgspec.msgpack.decode(wire, type=PackedLogprobs), len(tokens)) == tokens


def test_the_bytes_are_those_of_the_protocol() -> None:
    packed = pack_logprobs([TokenLogprobs(-0.5, 2, [7], [-0.25])])
    assert packed == PackedLogprobs(1, b"\0\0\0\xbf", b"\2\0\0\0", b"\7\0\0\0", b"\0\0\x80\xbe")


def test_without_alternatives_only_the_tokens_own_travel() -> None:
    packed = pack_logprobs([TokenLogprobs(-0.5, 2, [], [])])
    assert packed == PackedLogprobs(0, b"\0\0\0\xbf", b"\2\0\0\0")


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_buffers_of_another_number_of_tokens_are_a_fault_of_the_peer(num_tokens: int) -> None:
    packed = pack_logprobs([TokenLogprobs(-0.5, 2, [7], [-0.25])])
    with pytest.raises(ProtocolError, match="logprobs: 4 bytes"):
        unpack_logprobs(packed, num_tokens)


def test_alternatives_that_do_not_match_their_number_are_a_fault_of_the_peer() -> None:
    packed = pack_logprobs([TokenLogprobs(-0.5, 2, [7], [-0.25])])
    for damaged in (msgspec.structs.replace(packed, tops=2), msgspec.structs.replace(packed, tops=-1)):
        with pytest.raises(ProtocolError):
            unpack_logprobs(damaged, 1)
