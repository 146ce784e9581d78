"""Log probabilities from an engine core are checked before they are used."""

import pytest

from api_server.output_logprobs import output_logprobs, prompt_logprobs
from protocol.errors import ProtocolError
from protocol.identifiers import RequestId
from protocol.logprobs import PackedLogprobs, TokenLogprobs, pack_logprobs
from protocol.messages import EngineCoreOutput
from protocol.sampling import SamplingParams

WITH = SamplingParams(max_tokens=9, logprobs=1)
TOKENS = [TokenLogprobs(-0.5, 1, [3], [-0.5]), TokenLogprobs(-1.0, 2, [5], [-0.25])]


def output(logprobs: PackedLogprobs | None, token_ids: list[int] | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(RequestId("r"), 0, 0, [3, 4] if token_ids is None else token_ids, logprobs=logprobs)


def test_there_is_one_for_each_token() -> None:
    assert output_logprobs(output(pack_logprobs(TOKENS)), WITH) == TOKENS


def test_a_request_that_did_not_ask_gets_none() -> None:
    assert output_logprobs(output(pack_logprobs(TOKENS)), SamplingParams(max_tokens=9)) == []


@pytest.mark.parametrize("packed", [None, pack_logprobs(TOKENS[:1]), PackedLogprobs(1, b"1234", b"", b"", b"")])
def test_missing_or_wrong_ones_are_an_error(packed: PackedLogprobs | None) -> None:
    with pytest.raises(ProtocolError):
        output_logprobs(output(packed), WITH)


def test_an_end_without_tokens_needs_none() -> None:
    assert output_logprobs(output(None, []), WITH) == []


def test_those_of_a_prompt_come_with_the_first_token_and_are_checked_too() -> None:
    asked = SamplingParams(max_tokens=9, prompt_logprobs=1)
    first = EngineCoreOutput(RequestId("r"), 0, 0, [3], prompt_logprobs=pack_logprobs(TOKENS))
    assert prompt_logprobs(first, asked, 3) == TOKENS
    assert prompt_logprobs(first, SamplingParams(max_tokens=9), 3) == []
    assert prompt_logprobs(EngineCoreOutput(RequestId("r"), 0, 1, [3]), asked, 3) == []
    assert prompt_logprobs(EngineCoreOutput(RequestId("r"), 0, 0, [3]), asked, 1) == []
    for wrong, count in [(first, 4), (EngineCoreOutput(RequestId("r"), 0, 0, [3]), 3)]:
        with pytest.raises(ProtocolError):
            prompt_logprobs(wrong, asked, count)
