"""The bytes of messages: unchanged between releases, the same after a round trip, open for new fields at the end."""

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_samples import GOLDEN, SAMPLES

from protocol import codec, messages
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.messages import TYPE_NUMBERS, FinishReason, Message, RejectReason, RouteReason
from protocol.sampling import SamplingParams

DOORS = (
    codec.AT_COORDINATOR_FROM_CLIENT,
    codec.AT_COORDINATOR_FROM_ENGINE,
    codec.AT_CLIENT,
    codec.AT_ENGINE,
    codec.AT_OUTPUTS,
    codec.AT_SUBSCRIBER,
)
STRUCTS = [each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, Message)]


def struct_strategy(struct: type) -> st.SearchStrategy[typing.Any]:
    hints = typing.get_type_hints(struct)
    return st.builds(struct, **{field: strategy_for(hints[field]) for field in struct.__struct_fields__})  # type: ignore[attr-defined]


def strategy_for(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    hint = getattr(hint, "__supertype__", hint)
    if hint is int:
        return st.integers(-(2**63), 2**64 - 1)
    if hint is float:
        return st.floats(allow_nan=False)
    return st.from_type(hint)


st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
struct_types: list[type] = [SamplingParams, *STRUCTS]
for struct_type in struct_types:
    st.register_type_strategy(struct_type, struct_strategy)


def decode(message_type: type[Message], payload: bytes) -> Message:
    return msgspec.msgpack.decode(payload, type=message_type)


def test_there_is_a_sample_of_each_message() -> None:
    assert {type(sample) for sample in SAMPLES} == set(TYPE_NUMBERS) == set(GOLDEN)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_field_of_a_sample_is_on_the_wire(sample: Message) -> None:
    payload = msgspec.msgpack.decode(encode(sample)[1])
    assert len(payload) == len(type(sample).__struct_fields__)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_messages_have_the_bytes_that_they_always_had(sample: Message) -> None:
    assert b"".join(map(bytes, encode(sample))).hex() == GOLDEN[type(sample)]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_fields_that_a_newer_release_has_appended_are_ignored(sample: Message) -> None:
    payload = msgspec.msgpack.decode(encode(sample)[1])
    longer = msgspec.msgpack.encode([*payload, "new", {"from": "the future"}])
    assert decode(type(sample), longer) == sample


@pytest.mark.parametrize("message_type", list(TYPE_NUMBERS), ids=lambda each: each.__name__)
def test_fields_that_an_older_release_did_not_send_have_their_defaults(message_type: type[Message]) -> None:
    (sample,) = [each for each in SAMPLES if type(each) is message_type]
    num_required = len(message_type.__struct_fields__) - len(message_type.__struct_defaults__)
    payload = msgspec.msgpack.decode(encode(sample)[1])
    shorter = decode(message_type, msgspec.msgpack.encode(payload[:num_required]))
    required = [getattr(sample, field) for field in message_type.__struct_fields__[:num_required]]
    assert shorter == message_type(*required)
    if num_required:
        with pytest.raises(msgspec.ValidationError):
            decode(message_type, msgspec.msgpack.encode(payload[: num_required - 1]))


@given(st.one_of([st.from_type(each) for each in TYPE_NUMBERS]))
def test_messages_survive_the_wire(message: Message) -> None:
    type_byte, payload = encode(message)
    assert type_byte == bytes([TYPE_NUMBERS[type(message)]])
    assert decode(type(message), bytes(payload)) == message


def test_type_numbers_are_not_shared() -> None:
    assert len(set(TYPE_NUMBERS.values())) == len(TYPE_NUMBERS)
    assert all(0 < number < 256 for number in TYPE_NUMBERS.values())


def test_enum_values_never_change() -> None:
    assert {each.name: each.value for each in FinishReason} == {
        "STOP": 1,
        "LENGTH": 2,
        "ABORT": 3,
        "ERROR": 4,
        "TIMEOUT": 5,
    }
    assert {each.name: each.value for each in RejectReason} == {
        "NO_ENGINE": 1,
        "UNKNOWN_MODEL": 2,
        "OVERLOADED": 3,
        "DUPLICATE": 4,
        "RATE_LIMITED": 5,
        "TIMED_OUT": 6,
        "NO_SUCH_ENGINE": 7,
    }
    assert {each.name: each.value for each in RouteReason} == {"LOAD": 1, "AFFINITY": 2, "HINT": 3, "RESUME": 4}


def test_each_message_has_a_door_that_takes_it() -> None:
    for sample in SAMPLES:
        frames = encode(sample, b"buffer")
        assert any(_takes(door, frames) for door in DOORS), type(sample).__name__


def _takes(door: codec.Door[typing.Any], frames: list[codec.Frame]) -> bool:
    try:
        return bool(door.decode(frames).message is not None)
    except ProtocolError:
        return False


@pytest.mark.parametrize("struct", [SamplingParams, *STRUCTS], ids=lambda each: each.__name__)
def test_messages_are_frozen_arrays_without_garbage_collection(struct: type[msgspec.Struct]) -> None:
    config = struct.__struct_config__
    assert config.frozen and config.array_like and config.omit_defaults and not config.gc
