"""Plans that are made before the last result is known."""

from array import array

import pytest
from token_device import TokenDevice, output_alone

from engine_core.device import StepPlan
from engine_core.pending_saves import PLANS_TOGETHER
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.sequence import Sequence
from engine_core.step_share import StepShare
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

CLIENT = ClientIndex(0)
LIMITS = SchedulerLimits(
    max_num_seqs=2, max_num_batched_tokens=256, max_model_len=513, kv_capacity_tokens=2_048, pool_lengths=(256, 512)
)
PROMPT = [5, 6, 7, 8]


class Pair:
    """A scheduler with its device, plan by plan."""

    def __init__(self, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.scheduler = Scheduler(LIMITS, eos_token_ids)
        self.device = TokenDevice(
            LIMITS.kv_capacity_tokens, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, LIMITS.pool_lengths
        )

    def add(self, name: str, attempt: int = 0, max_tokens: int = 50, prompt: list[int] = PROMPT) -> RequestKey:
        sampling = SamplingParams(max_tokens=max_tokens)
        request = EngineCoreRequest(RequestId(name), CLIENT, attempt, "m", len(prompt), sampling, 0.0)
        chain = prefix_chain(prefix_root("m", "", ""), prompt)
        assert not self.scheduler.add(request, array("I", prompt), chain)
        return request.key

    def submit(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.device.submit(plan)
        self.scheduler.check_invariants()
        return plan

    def collect(self) -> list[EngineCoreOutput]:
        outputs = self.scheduler.update(self.device.collect())
        self.scheduler.check_invariants()
        return outputs.get(CLIENT, [])


def test_a_token_that_is_not_known_yet_is_fed_by_the_device() -> None:
    pair = Pair()
    pair.add("a")
    plans = [pair.submit(), pair.submit()]
    assert [plan.decodes[0].token_id for plan in plans] == [PROMPT[-1], None]
    assert [plan.decodes[0].output_position for plan in plans] == [0, 1]
    tokens = [token for _ in plans for output in pair.collect() for token in output.token_ids]
    assert tokens == output_alone(PROMPT, 2)
    assert pair.submit().decodes[0].token_id == tokens[-1], "now it is known"


def test_what_ends_by_length_is_not_planned_again() -> None:
    pair = Pair()
    pair.add("a", max_tokens=1)
    pair.submit()
    assert pair.scheduler.plan() is None
    [output] = pair.collect()
    assert output.finish_reason is FinishReason.LENGTH
    assert pair.submit().releases == [0]


def test_what_ends_by_a_stop_token_wastes_one_row_which_the_plan_after_it_frees() -> None:
    first = output_alone(PROMPT, 1)[0]
    pair = Pair(eos_token_ids=(first,))
    pair.add("a")
    pair.submit()
    wasted = pair.submit()
    assert [decode.row for decode in wasted.decodes] == [0]
    [output] = pair.collect()
    assert output.finish_reason is FinishReason.STOP
    pair.add("b", prompt=[1, 2])
    following = pair.submit()
    assert (following.releases, [admission.row for admission in following.admissions]) == ([0], [0])
    assert pair.collect() == [], "of the wasted row"
    assert [o.token_ids for o in pair.collect()] == [output_alone([1, 2], 1)]


def test_an_abort_and_a_newer_attempt_while_two_plans_run() -> None:
    pair = Pair()
    pair.add("a")
    pair.submit()
    pair.submit()
    new = pair.add("a", attempt=1)
    assert pair.collect() == []
    pair.submit()
    assert pair.collect() == []
    assert [(output.key, output.position) for output in pair.collect()] == [(new, 0)]


def test_blocks_are_saved_some_plans_after_their_last_token_is_known() -> None:
    pair = Pair()
    prompt = list(range(40))
    pair.add("a", max_tokens=60, prompt=prompt)
    pair.submit()
    saves: list[tuple[int, int]] = []
    for step in range(1, 50):
        plan = pair.submit()
        saves += [(step, save.start) for save in plan.saves]
        pair.collect()
    # Step 0 feeds position 39, step 24 position 63: step 25 could save, and the ids of all 64 are known then.
    assert saves == [(25 + PLANS_TOGETHER - 1, 0)]


def test_a_result_belongs_to_the_stay_in_which_it_was_planned() -> None:
    request = EngineCoreRequest(RequestId("a"), CLIENT, 0, "m", 4, SamplingParams(max_tokens=9), 0.0)
    sequence = Sequence(request, array("I", PROMPT), 0, 100)
    sequence.admit(0)
    share = StepShare(sequence, 3, True, sequence.stay)
    assert share.counts
    sequence.preempt()
    assert not share.counts
    sequence.admit(0)
    assert not share.counts, "the row is the same, the stay is another"


def test_at_most_two_plans_are_without_a_result() -> None:
    pair = Pair()
    pair.add("a")
    pair.submit()
    pair.submit()
    with pytest.raises(AssertionError, match="two plans"):
        pair.scheduler.plan()
