"""Requests that come with output of an earlier attempt go on behind it."""

from array import array

import msgspec
import pytest
from token_device import TokenDevice, output_alone

from engine_core.events import RequestArrived, RequestInvalid
from engine_core.request_check import check_request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.codec import pack_token_ids
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from protocol.sampling import SamplingParams

LIMITS = SchedulerLimits(
    max_num_seqs=2, max_num_batched_tokens=16, max_model_len=513, kv_capacity_tokens=2_048, pool_lengths=(256, 512)
)
PROMPT = [1, 2, 3]
MAX_TOKENS = 6


def resumed(num_output_tokens: int, max_tokens: int = MAX_TOKENS) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    length = len(PROMPT) + num_output_tokens
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 1, "m", length, sampling, arrival_time_s=0.0)
    return msgspec.structs.replace(request, num_output_tokens=num_output_tokens)


@pytest.mark.parametrize("done", range(MAX_TOKENS))
def test_the_rest_is_what_would_have_come_at_its_own_positions(done: int) -> None:
    whole = output_alone(PROMPT, MAX_TOKENS)
    scheduler = Scheduler(LIMITS, eos_token_ids=[])
    device = TokenDevice(
        LIMITS.kv_capacity_tokens, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, LIMITS.pool_lengths
    )
    scheduler.add(resumed(done), array("I", PROMPT + whole[:done]))
    outputs: list[EngineCoreOutput] = []
    while scheduler.has_requests:
        plan = scheduler.plan()
        assert plan is not None
        outputs += scheduler.update(device.run(plan)).get(ClientIndex(0), [])
        scheduler.check_invariants()
    assert [output.position for output in outputs] == list(range(done, MAX_TOKENS))
    assert [token for output in outputs for token in output.token_ids] == whole[done:]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert {output.attempt for output in outputs} == {1}


@pytest.mark.parametrize(("num_output_tokens", "is_sound"), [(0, True), (1, True), (2, False), (-1, False)])
def test_output_leaves_a_prompt_before_it_and_a_token_to_generate(num_output_tokens: int, is_sound: bool) -> None:
    request = msgspec.structs.replace(resumed(0, max_tokens=2), num_output_tokens=num_output_tokens)
    checked = check_request(request, [pack_token_ids(PROMPT)], vocab_size=10, max_model_len=100)
    assert isinstance(checked, RequestArrived if is_sound else RequestInvalid)
    all_output = msgspec.structs.replace(resumed(0, max_tokens=9), num_output_tokens=len(PROMPT))
    assert isinstance(
        check_request(all_output, [pack_token_ids(PROMPT)], vocab_size=10, max_model_len=100), RequestInvalid
    )
