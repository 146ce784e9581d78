"""What the engine core lets in."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest

from engine_core.events import RequestArrived, RequestInvalid
from engine_core.request_check import check_request
from protocol.codec import pack_token_ids
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import BlockHash, prefix_chain, prefix_root
from protocol.sampling import SamplingParams

VOCABULARY = 100
MAX_MODEL_LEN = 200


def request(tokens: int, **sampling: object) -> EngineCoreRequest:
    parameters = SamplingParams(**{"max_tokens": 5, **sampling})  # type: ignore[arg-type]
    return EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", tokens, parameters, arrival_time_s=0.0)


def resumed(tokens: int, num_output_tokens: int) -> EngineCoreRequest:
    return msgspec.structs.replace(request(tokens), num_output_tokens=num_output_tokens)


def test_a_sound_request_comes_with_its_prompt() -> None:
    sound = request(3, stop_token_ids=(0, 99), logit_bias={99: 1.0}, seed=2**64 - 1)
    assert check_request(sound, [pack_token_ids([0, 50, 99])], VOCABULARY, MAX_MODEL_LEN) == RequestArrived(
        sound, array("I", [0, 50, 99])
    )


def test_a_resumed_request_may_bring_all_its_tokens_but_the_last() -> None:
    assert isinstance(
        check_request(resumed(5, 4), [pack_token_ids([1] * 5)], VOCABULARY, MAX_MODEL_LEN), RequestArrived
    )


def test_prefixes_are_named_by_tokens_model_and_salt_where_they_are_stored() -> None:
    prompt = [5] * 130

    def chain(card_hash: str | None, salt: str = "") -> Sequence[BlockHash]:
        salted = msgspec.structs.replace(request(len(prompt)), cache_salt=salt)
        arrived = check_request(salted, [pack_token_ids(prompt)], VOCABULARY, MAX_MODEL_LEN, card_hash)
        assert isinstance(arrived, RequestArrived)
        return arrived.chain

    assert chain(None) == ()
    assert chain("card") == prefix_chain(prefix_root("card", "", ""), prompt)
    assert len(chain("card")) == 3
    assert not set(chain("card")) & {*chain("card", "salt"), *chain("other card")}


@pytest.mark.parametrize(
    ("asked", "buffers", "words"),
    [
        (request(2), [pack_token_ids([1, 100])], "100"),
        (request(3), [pack_token_ids([1, 2])], "2 prompt tokens came instead of 3"),
        (request(0), [b""], "empty"),
        (request(1), [b"12345"], "token ids"),
        (request(1), [], "0 buffers"),
        (request(1), [pack_token_ids([1]), b"", b""], "3 buffers"),
        (request(1, stop_token_ids=(100,)), [pack_token_ids([1])], "100"),
        (request(1, logit_bias={-1: 0.5}), [pack_token_ids([1])], "-1"),
        (request(1, max_tokens=0), [pack_token_ids([1])], "max_tokens"),
        (request(1, seed=-1), [pack_token_ids([1])], "seed"),
        (request(1, bad_words_token_ids=((1,), ())), [pack_token_ids([1])], "word of 0 tokens"),
        (request(1, allowed_token_ids=()), [pack_token_ids([1])], "allowed_token_ids"),
        (resumed(3, -1), [pack_token_ids([1, 2, 3])], "num_output_tokens"),
        (resumed(3, 3), [pack_token_ids([1, 2, 3])], "num_output_tokens is 3"),
        (resumed(9, 5), [pack_token_ids([1] * 9)], "max_tokens 5"),
    ],
)
def test_what_could_harm_the_others_is_refused_with_the_reason(
    asked: EngineCoreRequest, buffers: list[bytes], words: str
) -> None:
    checked = check_request(asked, buffers, VOCABULARY, MAX_MODEL_LEN)
    assert isinstance(checked, RequestInvalid)
    assert checked.request is asked
    assert words in checked.error


def test_a_prompt_that_is_too_long_is_refused_before_it_is_looked_at() -> None:
    fits, too_long = pack_token_ids([1] * (MAX_MODEL_LEN - 1)), pack_token_ids([VOCABULARY] * MAX_MODEL_LEN)
    assert isinstance(
        check_request(request(MAX_MODEL_LEN - 1), [fits], VOCABULARY, MAX_MODEL_LEN, "card"), RequestArrived
    )
    refused = check_request(request(MAX_MODEL_LEN), [too_long], VOCABULARY, MAX_MODEL_LEN, "card")
    assert isinstance(refused, RequestInvalid)
    assert "200 tokens" in refused.error
