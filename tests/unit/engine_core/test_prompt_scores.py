"""Log probabilities of prompt tokens are those of one plain forward, whatever the runner and however it is cut."""

import itertools
import random
from array import array
from collections.abc import Sequence as Many

import mlx.core as mx
import numpy as np
import pytest
from scheduler_world import World as SchedulerWorld
from slot_world import LEVELS_OF_MODELS, World, admission
from tiny_models import VOCAB, logits_alone, tiny_model
from token_device import doubled_lengths

from engine_core import prompt_scores
from engine_core.device import PrefillChunk, Slot, StepPlan
from engine_core.events import RequestArrived
from engine_core.model_runner import ModelRunner
from engine_core.prompt_scores import score_chunk
from engine_core.request_check import check_request
from engine_core.row_runner import RowRunner
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.sequence import Sequence
from engine_core.slot_runner import Level
from protocol.codec import pack_token_ids
from protocol.identifiers import ClientIndex, RequestId
from protocol.logprobs import TokenLogprobs, unpack_logprobs
from protocol.messages import EngineCoreOutput, EngineCoreRequest
from protocol.sampling import SamplingParams

TOKENS = [random.Random(5).randrange(VOCAB) for _ in range(40)]


def expected(model: object, token_ids: Many[int]) -> np.ndarray:
    """[n - 1, vocabulary]: at place i of the token after the first i + 1."""
    logits = logits_alone(model, token_ids).astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[:-1]


def scores(runner: ModelRunner, chunks: Many[int]) -> list[TokenLogprobs]:
    found: list[TokenLogprobs] = []
    for start, end in itertools.pairwise(chunks):
        found += score_chunk(runner, PrefillChunk(0, start, TOKENS[start:end], TOKENS[start + 1 : end + 1], 3))
    return found


def check(model: object, found: Many[TokenLogprobs]) -> None:
    rows = expected(model, TOKENS)
    assert len(found) == len(rows)
    for row, told, target in zip(rows, found, TOKENS[1:], strict=True):
        assert told.logprob == pytest.approx(row[target], abs=1e-4)
        assert told.rank == 1 + int((row > row[target]).sum())
        assert list(told.top_logprobs) == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-4)
        assert [row[token] for token in told.top_ids] == pytest.approx(list(told.top_logprobs), abs=1e-4)


@pytest.mark.parametrize(("model_type", "level"), LEVELS_OF_MODELS)
def test_in_slots(model_type: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scores, "SCORED_TOKENS", 7)
    world = World(tiny_model(model_type), level)
    world.admit((0, Slot(1, 1)))
    check(world.model, scores(world.runner, [0, 1, 12, 39]))


def test_in_rows_of_their_own() -> None:
    model = tiny_model("llama")
    runner = RowRunner(model)
    runner.prepare(StepPlan(admissions=[admission(0, Slot(0, 0))]))
    check(model, scores(runner, [0, 20, 39]))


# --- scheduling -----------------------------------------------------------------------------------------------

LIMITS = SchedulerLimits(
    max_num_seqs=3,
    max_num_batched_tokens=16,
    max_model_len=200,
    kv_capacity_tokens=256,
    pool_lengths=doubled_lengths(32, 256),
    growth_tokens=1,
)
SCORED = SamplingParams(max_tokens=60, prompt_logprobs=0, ignore_eos=True)


def told(outputs: Many[EngineCoreOutput], num_prompt_tokens: int) -> list[float]:
    first, *others = outputs
    assert first.prompt_logprobs is not None
    assert all(output.prompt_logprobs is None for output in others)
    return [token.logprob for token in unpack_logprobs(first.prompt_logprobs, num_prompt_tokens - 1)]


@pytest.mark.parametrize("lookahead", [False, True])
def test_all_come_once_with_the_first_token_of_output(lookahead: bool) -> None:
    world = SchedulerWorld(LIMITS, lookahead=lookahead, stores_prefixes=False)
    lengths = {world.add([n + i for i in range(20 + 9 * n)], SCORED): 20 + 9 * n for n in range(1, 9)}
    world.finish()
    assert world.scheduler.load().preemptions_total > 0
    for number, (key, length) in enumerate(lengths.items(), start=1):
        assert told(world.outputs[key], length) == [-float(number + i) for i in range(1, length)]


def test_what_was_found_before_a_preemption_is_found_anew() -> None:
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", 9, SCORED, 0.0)
    sequence = Sequence(request, array("I", range(9)), 0, 100)
    sequence.admit(0)
    sequence.planned(5, decodes=False)
    sequence.scored([TokenLogprobs(-1.0, 1, [], [])] * 5)
    sequence.preempt()
    assert (sequence.take_prompt_logprobs(), sequence.wanted_scores) == ([], 0)


def test_a_prompt_of_one_token_has_none_to_tell() -> None:
    world = SchedulerWorld(LIMITS, lookahead=False, stores_prefixes=False)
    key = world.add([5], SCORED)
    world.finish()
    assert all(output.prompt_logprobs is None for output in world.outputs[key])


def test_an_attempt_that_has_output_already_tells_none_again() -> None:
    world = SchedulerWorld(LIMITS, lookahead=False, stores_prefixes=False)
    key = world.add([5, 6, 7], SCORED)
    newer = world.add_newer_attempt(key, resumed_tokens=4)
    world.finish()
    assert all(output.prompt_logprobs is None for output in world.outputs[newer])


def test_no_prefix_is_looked_up_for_it() -> None:
    # BR-f09
    prompt = array("I", range(200))
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", 200, SCORED, 0.0)
    checked = check_request(request, [pack_token_ids(prompt)], 300, 1_000, "card")
    assert isinstance(checked, RequestArrived)
    assert checked.chain == ()
