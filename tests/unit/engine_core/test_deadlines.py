"""Deadlines of requests: the heap by itself, and in the engine core."""

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_device import TokenDevice

from engine_core.core import EngineCore
from engine_core.deadlines import Deadlines
from engine_core.events import ClientsChanged, RequestArrived, RequestsAborted
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.sampling import SamplingParams

CLIENT = ClientIndex(0)


def key(name: str, attempt: int = 0) -> RequestKey:
    return RequestKey(RequestId(name), attempt)


def test_the_earliest_is_due_first_and_once() -> None:
    deadlines = Deadlines()
    for name, deadline_s in (("late", 30.0), ("early", 10.0), ("never", 0.0), ("middle", 20.0)):
        deadlines.add(key(name), deadline_s)
    assert deadlines.next_s == 10.0
    assert deadlines.take_due(9.9) == []
    assert deadlines.take_due(20.0) == [key("early"), key("middle")]
    assert deadlines.take_due(99.0) == [key("late")]
    assert deadlines.take_due(math.inf) == [] and deadlines.next_s == math.inf


def test_one_that_has_ended_is_not_due() -> None:
    deadlines = Deadlines()
    deadlines.add(key("a"), 10.0)
    deadlines.add(key("a", 1), 10.0)
    deadlines.forget([key("a"), key("unknown")])
    assert deadlines.take_due(10.0) == [key("a", 1)]


def test_those_that_have_ended_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.add(key(str(number)), 1e9)
        deadlines.forget([key(str(number))])
        deadlines.check_invariants()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.booleans()), max_size=80))
def test_exactly_the_live_ones_are_due_in_order(steps: list[tuple[int, int, bool]]) -> None:
    deadlines, expected = Deadlines(), {}
    for number, deadline_s, forgets in steps:
        if forgets:
            deadlines.forget([key(str(number))])
            expected.pop(key(str(number)), None)
        else:
            deadlines.add(key(str(number)), float(deadline_s))
            if deadline_s:
                expected.setdefault(key(str(number)), deadline_s)
        deadlines.check_invariants()
    due = deadlines.take_due(25.0)
    assert sorted(due) == sorted(each for each, deadline_s in expected.items() if deadline_s <= 25)
    assert [expected[each] for each in due] == sorted(expected[each] for each in due)


# --- in the engine core ---------------------------------------------------------------------------------------

LIMITS = SchedulerLimits(
    max_num_seqs=1, max_num_batched_tokens=16, max_model_len=200, kv_capacity_tokens=512, pool_lengths=(256,)
)


@pytest.fixture
def core() -> EngineCore:
    core = EngineCore(Scheduler(LIMITS, [99]), drain_timeout_s=5.0)
    core.handle(ClientsChanged({CLIENT: "ipc:///a"}), 0.0)
    return core


@pytest.fixture
def device() -> TokenDevice:
    return TokenDevice(
        LIMITS.kv_capacity_tokens, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, LIMITS.pool_lengths
    )


def arrive(core: EngineCore, name: str, deadline_s: float, prompt: int = 2) -> None:
    sampling = SamplingParams(max_tokens=100)
    request = EngineCoreRequest(RequestId(name), CLIENT, 0, "m", prompt, sampling, 0.0, deadline_s=deadline_s)
    assert core.handle(RequestArrived(request, array("I", [1] * prompt)), 0.0) == {}


def step(core: EngineCore, device: TokenDevice) -> None:
    plan = core.plan()
    assert plan is not None
    core.complete(device.run(plan), 0.0)
    core.check_invariants()


def end_of(name: str, position: int) -> dict[ClientIndex, list[EngineCoreOutput]]:
    return {CLIENT: [EngineCoreOutput(RequestId(name), 0, position, finish_reason=FinishReason.TIMEOUT)]}


def test_while_it_waits_while_it_prefills_and_while_it_decodes(core: EngineCore, device: TokenDevice) -> None:
    arrive(core, "decodes", 1000.0)
    arrive(core, "waits", 990.0)
    for _ in range(3):
        step(core, device)
    assert core.tick(0.0, 989.9) == {}
    assert core.tick(0.0, 990.0) == end_of("waits", 0)
    assert core.tick(0.0, 1001.0) == end_of("decodes", 3)
    arrive(core, "prefills", 1010.0, prompt=100)
    step(core, device)
    assert core.tick(0.0, 1010.0) == end_of("prefills", 0)
    step(core, device)  # tells the device of the row that is free
    core.check_invariants()
    assert core.plan() is None
    status = core.take_status()
    assert {ended.request_id for ended in status.ended} == {"decodes", "waits", "prefills"}
    assert status.load.finished_total["timeout"] == 3


def test_one_that_ended_in_time_is_left_alone(core: EngineCore, device: TokenDevice) -> None:
    arrive(core, "a", 1000.0, prompt=2)
    core.handle(ClientsChanged({}), 0.0)
    core.take_status()
    core.check_invariants()
    assert core.tick(0.0, 2000.0) == {}


def test_a_request_that_waits_for_its_grammar_is_timed_out_while_nothing_runs(core: EngineCore) -> None:
    sampling, grammar = SamplingParams(max_tokens=9), GrammarSpec(GrammarKind.REGEX, "[0-9]+", "f")
    request = EngineCoreRequest(RequestId("g"), CLIENT, 0, "m", 1, sampling, 0.0, deadline_s=1000.0, grammar=grammar)
    assert core.handle(RequestArrived(request, array("I", [1])), 0.0) == {}
    assert core.plan() is None
    assert core.idle_timeout_s(0.0, 970.0) == 30.0
    assert core.tick(30.0, 1000.0) == end_of("g", 0)
    assert core.idle_timeout_s(30.0, 1000.0) is None


def test_nobody_is_woken_for_a_request_that_has_ended(core: EngineCore) -> None:
    arrive(core, "early", 1000.0)
    arrive(core, "late", 1010.0)
    core.handle(RequestsAborted([key("early")]), 0.0)
    core.take_status()
    assert core.idle_timeout_s(0.0, 990.0) == 20.0
