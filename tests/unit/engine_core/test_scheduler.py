"""The scheduler, step by step, on a device that only checks the plans."""

from array import array
from typing import Any, ClassVar

import pytest
from token_device import TokenDevice, output_alone

from engine_core import scheduler as scheduler_module
from engine_core.chunk_budget import FixedChunkBudget
from engine_core.device import Slot, StepResult
from engine_core.fair_queue import PATIENCE
from engine_core.pool_lengths import pool_lengths
from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.step_cost import StepShape
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.sampling import SamplingParams

CLIENT = ClientIndex(0)
EOS = 1_000


def limits(**changes: Any) -> SchedulerLimits:
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 513,
        "kv_capacity_tokens": 2_048,
    }
    values = {**defaults, **changes}
    if "pool_lengths" not in changes:
        values["pool_lengths"] = pool_lengths(values["max_model_len"])
    return SchedulerLimits(**values)


def request(name: str, tokens: int = 4, *, attempt: int = 0, priority: int = 0, client: int = 0, **sampling: object):
    parameters = SamplingParams(**{"max_tokens": 3, "temperature": 0.0, **sampling})  # type: ignore[arg-type]
    prompt = array("I", [ord(name[0]) % 50, *range(1, tokens)])
    return (
        EngineCoreRequest(
            RequestId(name),
            ClientIndex(client),
            attempt,
            "m",
            tokens,
            parameters,
            arrival_time_s=0.0,
            priority=priority,
        ),
        prompt,
    )


class Bench:
    """A scheduler and its device; collects the outputs of each request."""

    def __init__(self, **changes: Any) -> None:
        self.limits = limits(**changes)
        self.scheduler = Scheduler(self.limits, [EOS])
        self.device = TokenDevice(
            self.limits.kv_capacity_tokens,
            self.limits.max_num_seqs,
            self.limits.max_num_batched_tokens,
            self.limits.pool_lengths,
        )
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}

    def add(self, *args: object, **kwargs: object) -> RequestKey:
        added, prompt = request(*args, **kwargs)  # type: ignore[arg-type]
        self.collect(self.scheduler.add(added, prompt))
        return added.key

    def step(self) -> None:
        plan = self.scheduler.plan()
        self.scheduler.check_invariants()
        self.collect(self.scheduler.update(self.device.run(plan)))
        self.scheduler.check_invariants()

    def run(self, most_steps: int = 2_000) -> None:
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("it does not come to an end")

    def collect(self, outputs: OutputsByClient) -> None:
        for outs in outputs.values():
            for output in outs:
                self.outputs.setdefault(output.key, []).append(output)

    def tokens(self, key: RequestKey) -> list[int]:
        return [token for output in self.outputs.get(key, []) for token in output.token_ids]

    def last(self, key: RequestKey) -> EngineCoreOutput:
        return self.outputs[key][-1]


def test_a_request_gets_its_tokens_one_position_at_a_time() -> None:
    bench = Bench()
    key = bench.add("a", 40, max_tokens=5)
    bench.run()
    assert [(o.position, o.token_ids) for o in bench.outputs[key]] == [
        (position, [token]) for position, token in enumerate(output_alone(request("a", 40)[1], 5))
    ]
    assert [o.finish_reason for o in bench.outputs[key]] == [None] * 4 + [FinishReason.LENGTH]
    assert bench.scheduler.take_ended() == [key]
    assert bench.device.rows == {}


def test_a_prompt_that_fits_the_budget_yields_its_first_token_in_the_first_step() -> None:
    bench = Bench(max_num_batched_tokens=16)
    whole, one_more = bench.add("a", 16), RequestKey(RequestId("b"))
    bench.step()
    assert len(bench.tokens(whole)) == 1
    bench = Bench(max_num_batched_tokens=16)
    bench.add("b", 17)
    bench.step()
    assert bench.tokens(one_more) == []
    bench.step()
    assert len(bench.tokens(one_more)) == 1


def test_a_long_prompt_does_not_stall_running_streams() -> None:
    bench = Bench(max_num_batched_tokens=8)
    stream = bench.add("a", 4, max_tokens=20)
    bench.step()
    bench.add("b", 100)
    for step in range(1, 12):
        bench.step()
        assert len(bench.tokens(stream)) == step + 1


def test_waiting_requests_are_admitted_by_priority_then_arrival() -> None:
    bench = Bench(max_num_seqs=1)
    keys = [bench.add("a"), bench.add("b"), bench.add("c", priority=-1), bench.add("d")]
    bench.run()
    ended = bench.scheduler.take_ended()
    assert ended == [keys[2], keys[0], keys[1], keys[3]]


def test_a_short_prompt_overtakes_a_long_one_that_is_being_prefilled() -> None:
    bench = Bench(max_num_batched_tokens=16)
    long = bench.add("a", 100, max_tokens=1)
    bench.step()
    short = bench.add("b", 8, max_tokens=1)
    bench.step()
    assert bench.tokens(short)
    bench.run()
    assert bench.scheduler.take_ended() == [short, long]


def test_short_prompts_without_end_do_not_keep_a_long_one_waiting() -> None:
    bench = Bench(max_num_batched_tokens=16)
    long = bench.add("a", 100, max_tokens=1)
    admitted_before, number = 0, 0
    while not bench.tokens(long):
        while bench.scheduler.load().waiting + bench.scheduler.load().running < 4:
            number += 1
            bench.add(f"{number}", 15, max_tokens=1)
        bench.step()
        admitted_before += 15
        assert admitted_before <= 2 * PATIENCE * 100 + 100 + 4 * 15
    assert number > 20


def test_equal_prompts_are_prefilled_one_after_another() -> None:
    bench = Bench(max_num_seqs=8, kv_capacity_tokens=4_096, max_num_batched_tokens=32)
    keys = [bench.add(f"{number}", 100, max_tokens=1) for number in range(8)]
    bench.run()
    assert bench.scheduler.take_ended() == keys


def test_a_request_that_would_not_be_prefilled_yet_lets_a_shorter_one_of_another_client_pass() -> None:
    bench = Bench(max_num_batched_tokens=16)
    bench.add("a", 100)
    bench.step()
    bench.add("b", 120, client=1)
    short = bench.add("c", 8)
    bench.step()
    assert bench.tokens(short)
    assert bench.scheduler.load().waiting == 1


def test_whoever_has_no_room_in_the_cache_is_not_passed_by_smaller_ones() -> None:
    bench = Bench(kv_capacity_tokens=1_024, max_model_len=800, max_num_batched_tokens=600, patience=0)
    bench.add("a", 200, max_tokens=400)
    bench.add("b", 600)
    bench.add("c", 10)
    bench.step()
    assert (bench.scheduler.load().running, bench.scheduler.load().waiting) == (1, 2)


def test_the_chunk_budget_bounds_prefill_and_learns_from_each_step() -> None:
    class Budget(FixedChunkBudget):
        observed: ClassVar[list[tuple[StepShape, float]]] = []

        def prefill_tokens(self, decode_rows: int, joining: int) -> int:
            joined.append(joining)
            return 3 if decode_rows else 5

        def observe(self, shape: StepShape, elapsed_s: float) -> None:
            self.observed.append((shape, elapsed_s))

    joined: list[int] = []
    budget = Budget(0)
    scheduler = Scheduler(limits(), [EOS], budget)
    scheduler.add(*request("a", 5))
    scheduler.add(*request("b", 9))
    for elapsed_s in (0.5, 0.25, 0.125):
        plan = scheduler.plan()
        assert plan is not None
        scheduler.update(StepResult([1] * len(plan.decodes), elapsed_s))
    assert joined == [2, 1, 1]
    assert budget.observed == [(StepShape(4, 1), 0.5), (StepShape(3, 1), 0.25), (StepShape(3, 1), 0.125)]


def test_the_lowest_free_row_and_slot_are_given_first() -> None:
    bench = Bench()
    short, longer = bench.add("a", max_tokens=1), bench.add("b", max_tokens=10)
    bench.step()
    assert bench.last(short).finish_reason is FinishReason.LENGTH
    bench.add("c", max_tokens=10)
    plan = bench.scheduler.plan()
    assert plan is not None
    assert plan.releases == [0]
    assert [(admission.row, admission.slot) for admission in plan.admissions] == [(0, Slot(0, 0))]
    assert plan.pool_slots == [2, 0]
    bench.scheduler.update(bench.device.run(plan))
    assert longer not in bench.scheduler.take_ended()


@pytest.mark.parametrize(
    ("sampling", "token", "reason", "stop_reason"),
    [
        ({}, EOS, FinishReason.STOP, None),
        ({"ignore_eos": True}, EOS, None, None),
        ({"stop_token_ids": (7,)}, 7, FinishReason.STOP, 7),
        ({"stop_token_ids": (EOS,)}, EOS, FinishReason.STOP, None),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, EOS, FinishReason.STOP, EOS),
        ({}, 7, None, None),
        ({"max_tokens": 1}, 7, FinishReason.LENGTH, None),
        ({"max_tokens": 1}, EOS, FinishReason.STOP, None),
    ],
)
def test_what_ends_a_request(
    sampling: dict[str, object], token: int, reason: FinishReason | None, stop_reason: int | None
) -> None:
    scheduler = Scheduler(limits(), [EOS])
    scheduler.add(*request("a", **sampling))
    scheduler.plan()
    [output] = scheduler.update(StepResult([token], 0.0))[CLIENT]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([token], reason, stop_reason)
    assert scheduler.has_requests == (reason is None)


def test_the_context_ends_a_request_with_length() -> None:
    bench = Bench(max_model_len=20)
    key = bench.add("a", 15, max_tokens=100)
    bench.run()
    assert len(bench.tokens(key)) == 5
    assert bench.last(key).finish_reason is FinishReason.LENGTH


def test_a_prompt_without_room_for_a_token_ends_at_once_with_the_numbers() -> None:
    bench = Bench(max_model_len=20)
    key = bench.add("a", 20)
    [output] = bench.outputs[key]
    assert output.finish_reason is FinishReason.ERROR
    assert "20 tokens" in (output.error or "")
    assert bench.scheduler.take_ended() == [key]
    assert not bench.scheduler.has_work


def test_a_request_beyond_the_waiting_limit_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "MAX_WAITING_REQUESTS", 2)
    bench = Bench(max_num_seqs=1)
    keys = [bench.add(name) for name in "abc"]
    assert bench.last(keys[2]).finish_reason is FinishReason.ERROR
    assert "2 requests wait" in (bench.last(keys[2]).error or "")
    bench.run()
    assert bench.tokens(keys[0])


def test_a_refused_request_fails_alone() -> None:
    bench = Bench()
    good = bench.add("a")
    bad, _ = request("b")
    bench.collect(bench.scheduler.refuse(bad, "no"))
    bench.run()
    assert (bench.last(bad.key).finish_reason, bench.last(bad.key).error) == (FinishReason.ERROR, "no")
    assert bench.last(good).finish_reason is FinishReason.LENGTH


def test_no_output_follows_an_abort_even_of_a_plan_that_runs() -> None:
    bench = Bench()
    gone, stays = bench.add("a"), bench.add("b")
    bench.step()
    plan = bench.scheduler.plan()
    bench.scheduler.abort([gone, RequestKey(RequestId("unknown"))])
    bench.collect(bench.scheduler.update(bench.device.run(plan)))
    assert len(bench.tokens(gone)) == 1
    assert len(bench.tokens(stays)) == 2
    assert bench.scheduler.take_ended() == [gone]
    bench.run()
    assert bench.device.rows == {}


def test_a_client_that_is_gone_takes_its_requests_along() -> None:
    bench = Bench(max_num_seqs=1)
    running, waiting, other = bench.add("a", client=1), bench.add("b", client=1), bench.add("c", client=2)
    bench.step()
    bench.scheduler.drop_client(ClientIndex(1))
    assert set(bench.scheduler.take_ended()) == {running, waiting}
    bench.run()
    assert len(bench.tokens(other)) == 3


def test_a_duplicate_is_ignored() -> None:
    bench = Bench()
    key = bench.add("a")
    bench.step()
    bench.add("a")
    bad, _ = request("a")
    assert bench.scheduler.refuse(bad, "no") == {}
    bench.run()
    assert len(bench.tokens(key)) == 3
    assert bench.scheduler.take_ended() == [key]


def test_a_newer_attempt_replaces_the_older_silently_and_an_older_one_comes_to_nothing() -> None:
    bench = Bench()
    old = bench.add("a", attempt=1)
    bench.step()
    new = bench.add("a", attempt=2)
    late = bench.add("a", attempt=0)
    bench.run()
    assert len(bench.tokens(old)) == 1
    assert len(bench.tokens(new)) == 3
    assert late not in bench.outputs
    assert sorted(bench.scheduler.take_ended(), key=lambda key: key.attempt) == [late, old, new]


def test_an_abort_of_an_older_attempt_leaves_the_newer_alone() -> None:
    bench = Bench()
    bench.add("a", attempt=1)
    bench.scheduler.abort([RequestKey(RequestId("a"), 0)])
    assert bench.scheduler.has_requests


def test_the_youngest_of_the_lowest_priority_is_preempted_and_goes_on_as_if_nothing_had_happened() -> None:
    bench = Bench(max_num_seqs=3, kv_capacity_tokens=1_536, max_model_len=700, max_num_batched_tokens=64)
    keys = [
        bench.add("a", 20, max_tokens=600),
        bench.add("b", 20, max_tokens=600, priority=1),
        bench.add("c", 20, max_tokens=600),
    ]
    bench.run()
    for key, name in zip(keys, "abc", strict=True):
        assert bench.tokens(key) == output_alone(request(name, 20)[1], 600)
        assert [output.position for output in bench.outputs[key]] == list(range(600))
    assert bench.scheduler.load().preemptions_total >= 1
    assert bench.scheduler.take_ended() == [keys[0], keys[2], keys[1]]


def test_one_that_is_alone_and_has_no_room_for_its_move_is_computed_anew_in_a_longer_slot() -> None:
    bench = Bench(max_num_seqs=2, kv_capacity_tokens=768, max_model_len=769, max_num_batched_tokens=64)
    key = bench.add("b", 10, max_tokens=700)
    bench.run()
    assert bench.tokens(key) == output_alone(request("b", 10)[1], 700)
    assert bench.device.moves == 1, "from 256 to 512; both and 768 do not fit"
    assert bench.scheduler.load().preemptions_total == 1


def test_short_ones_do_not_pay_for_a_long_one() -> None:
    bench = Bench(max_num_seqs=9, kv_capacity_tokens=8 * 256 + 1_024, max_model_len=1_025, max_num_batched_tokens=2_000)
    keys = [bench.add("a", 900), *(bench.add(name, 50) for name in "bcdefghi")]
    bench.step()
    assert bench.scheduler.load().running == 9
    assert bench.scheduler.load().kv_used_tokens == 8 * 256 + 1_024
    bench.run()
    assert sorted(bench.scheduler.take_ended(), key=str) == sorted(keys, key=str)


def test_a_request_waits_while_the_running_ones_could_not_grow_beside_it() -> None:
    bench = Bench(kv_capacity_tokens=768, max_model_len=500, max_num_batched_tokens=600, max_num_seqs=2)
    bench.add("a", 200, max_tokens=290)
    bench.add("b", 10)
    bench.step()
    assert (bench.scheduler.load().running, bench.scheduler.load().waiting) == (1, 1)
    bench.run()
    assert bench.scheduler.load().preemptions_total == 0


def test_the_load_says_what_is_still_to_be_prefilled_and_what_was_done() -> None:
    bench = Bench(max_num_seqs=1, max_num_batched_tokens=16)
    bench.add("a", 41)
    bench.add("b", 11)
    assert bench.scheduler.load().queued_prefill_tokens == 50
    bench.step()
    load = bench.scheduler.load()
    assert (load.running, load.waiting, load.queued_prefill_tokens) == (1, 1, 40)
    assert (load.kv_used_tokens, load.kv_capacity_tokens) == (256, 2_048)
    bench.run()
    load = bench.scheduler.load()
    assert (load.prompt_tokens_total, load.generation_tokens_total) == (52, 6)
    assert load.finished_total == {"stop": 0, "length": 2, "abort": 0, "error": 0, "timeout": 0}
    assert (load.running, load.waiting, load.queued_prefill_tokens, load.kv_used_tokens) == (0, 0, 0, 0)


def test_the_end_of_all_is_told_to_every_client() -> None:
    bench = Bench(max_num_seqs=1)
    running, waiting = bench.add("a"), bench.add("b", client=1)
    bench.step()
    bench.collect(bench.scheduler.end_all("shut down"))
    for key, position in ((running, 1), (waiting, 0)):
        last = bench.last(key)
        assert (last.finish_reason, last.error, last.position) == (FinishReason.ABORT, "shut down", position)
    bench.run()
    assert bench.device.rows == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
        ({"pool_lengths": (256, 512), "max_model_len": 514}, "max_model_len"),
    ],
)
def test_limits_under_which_requests_could_starve_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limits(**changes)
