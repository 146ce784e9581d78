"""What the policy promises, on random traces: budgets, decodes first, priorities, bounded waiting, fair shares."""

from array import array
from collections import Counter
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given, settings

from engine_core.chunk_budget import ChunkBudget, FixedChunkBudget, TimedChunkBudget
from engine_core.device import StepPlan, StepResult
from engine_core.pool_lengths import pool_lengths
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.step_cost import StepShape
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

ROWS = 16
MAX_MODEL_LEN = 512
PATIENCE = 1
LONGEST = 60

Trace = list[tuple[int, int, int, int, int]]
"""Steps since the request before, prompt tokens, output tokens, client, priority."""


def traces(clients: int = 1, priorities: int = 1, max_size: int = 40) -> st.SearchStrategy[Trace]:
    one = st.tuples(
        st.sampled_from([0, 0, 0, 1, 3, 10]),
        st.one_of(st.integers(1, 20), st.sampled_from([40, LONGEST])),
        st.integers(1, 8),
        st.integers(0, clients - 1),
        st.integers(0, priorities - 1),
    )
    return st.lists(one, min_size=1, max_size=max_size)


crowds = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1]),
        st.one_of(st.integers(1, 10), st.integers(1, 10), st.integers(1, 10), st.sampled_from([30, LONGEST])),
        st.integers(1, 3),
        st.just(0),
        st.just(0),
    ),
    min_size=100,
    max_size=160,
)
"""Many short prompts among a few long ones, of one client."""


class SpyBudget:
    """Notes what the budget allowed for the step to come."""

    def __init__(self, budget: ChunkBudget) -> None:
        self._budget = budget
        self.allowed = 0

    def prefill_tokens(self, decode_rows: int, joining: int) -> int:
        assert decode_rows + joining <= ROWS
        self.allowed = self._budget.prefill_tokens(decode_rows, joining)
        return self.allowed

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        self._budget.observe(shape, elapsed_s)


class Run:
    """One trace, step by step; `admitted` and `started` in the order in which requests got a row and a first token."""

    def __init__(self, trace: Trace, budget: ChunkBudget, most_tokens: int = 64) -> None:
        self.budget = SpyBudget(budget)
        limits = SchedulerLimits(
            max_num_seqs=ROWS,
            max_num_batched_tokens=most_tokens,
            max_model_len=MAX_MODEL_LEN,
            kv_capacity_tokens=2 * ROWS * MAX_MODEL_LEN,
            pool_lengths=pool_lengths(MAX_MODEL_LEN),
            patience=PATIENCE,
        )
        self.scheduler = Scheduler(limits, [], self.budget)
        self.trace = trace
        self.most_tokens = most_tokens
        self.arrived = 0
        self.admitted: list[int] = []
        self.started: list[int] = []
        self.rows: dict[int, int] = {}
        self._left: dict[int, int] = {}

    def go(self) -> None:
        """To the end; raises AssertionError when there is none."""
        step = due = 0
        for number, (pause, *_) in enumerate(self.trace):
            due += pause
            while step < due:
                self.step()
                step += 1
            self._add(number)
        for _ in range(20_000):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("it does not come to an end")

    def step(self) -> None:
        if not self.scheduler.has_work:
            return
        waiting_before = self._waiting()
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.check_invariants()
        self._check(plan, waiting_before)
        seconds = 0.1 * bool(plan.decodes) + 0.002 * sum(len(chunk.token_ids) for chunk in plan.prefills)
        for outputs in self.scheduler.update(StepResult([1] * len(plan.decodes), seconds)).values():
            self.started += [int(output.request_id) for output in outputs if output.position == 0]
        self.scheduler.check_invariants()

    def tokens(self, numbers: list[int]) -> int:
        return sum(self.trace[number][1] for number in numbers)

    def priority(self, number: int) -> int:
        return self.trace[number][4]

    def _add(self, number: int) -> None:
        _, prompt, output, client, priority = self.trace[number]
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        name = RequestId(str(number))
        request = EngineCoreRequest(name, ClientIndex(client), 0, "m", prompt, sampling, 0.0, priority=priority)
        assert not self.scheduler.add(request, array("I", [number % 7] + [number] * (prompt - 1)))
        self.arrived += 1

    def _waiting(self) -> list[int]:
        return [number for number in range(self.arrived) if number not in self.admitted]

    def _check(self, plan: StepPlan, waiting: list[int]) -> None:
        for row in plan.releases:
            del self.rows[row], self._left[row]
        new: list[int] = []
        for admission in plan.admissions:
            number = self._number_of(admission.prompt, waiting, new)
            new.append(number)
            self.rows[admission.row], self._left[admission.row] = number, len(admission.prompt) - 1
        self.admitted += new
        self._check_budgets(plan)
        ready = {row for row, left in self._left.items() if left == 0}
        assert ready <= {decode.row for decode in plan.decodes}, "a stream does not go on"
        for chunk in plan.prefills:
            self._left[chunk.row] -= len(chunk.token_ids)
        self._check_priorities(plan, new)

    def _number_of(self, prompt: Sequence[int], waiting: list[int], taken: list[int]) -> int:
        return next(
            number
            for number in waiting
            if number not in taken
            and self.trace[number][1] == len(prompt)
            and (prompt[0] == number % 7)
            and (len(prompt) == 1 or prompt[1] == number)
        )

    def _check_budgets(self, plan: StepPlan) -> None:
        prefill = sum(len(chunk.token_ids) for chunk in plan.prefills)
        assert prefill <= self.budget.allowed
        assert prefill + len(plan.decodes) <= self.most_tokens

    def _check_priorities(self, plan: StepPlan, new: list[int]) -> None:
        unfinished = [self.priority(self.rows[row]) for row, left in self._left.items() if left]
        for chunk in plan.prefills:
            better = [priority for priority in unfinished if priority < self.priority(self.rows[chunk.row])]
            assert not better, "prefilled before one of a better priority"
        waiting = [self.priority(number) for number in self._waiting()]
        assert all(self.priority(number) <= min(waiting, default=99) for number in new), "admitted before a better one"


budgets = st.one_of(
    st.integers(8, 64).map(FixedChunkBudget),
    st.integers(8, 64).map(TimedChunkBudget),
)


@settings(deadline=None, max_examples=30)
@given(traces(clients=3, priorities=3), budgets)
def test_budgets_are_kept_decodes_come_first_and_priorities_are_respected(trace: Trace, budget: ChunkBudget) -> None:
    run = Run(trace, budget)
    run.go()
    assert sorted(run.started) == list(range(len(trace))), "everyone gets its tokens"


@settings(deadline=None, max_examples=30)
@given(crowds, budgets)
def test_later_requests_that_get_a_row_before_an_older_one_are_bounded(trace: Trace, budget: ChunkBudget) -> None:
    """By PATIENCE times its tokens, and what the step admits in which so many are reached."""
    run = Run(trace, budget)
    run.go()
    for place, number in enumerate(run.admitted):
        overtakers = [other for other in run.admitted[:place] if other > number]
        assert run.tokens(overtakers) <= PATIENCE * trace[number][1] + LONGEST + run.most_tokens


@settings(deadline=None, max_examples=30)
@given(crowds, budgets)
def test_those_admitted_later_that_are_prefilled_before_an_older_one_are_bounded(
    trace: Trace, budget: ChunkBudget
) -> None:
    run = Run(trace, budget)
    run.go()
    for number in range(len(trace)):
        started_before = set(run.started[: run.started.index(number)])
        later = [other for other in run.admitted[run.admitted.index(number) :] if other in started_before]
        assert run.tokens(later) <= PATIENCE * trace[number][1] + LONGEST


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 60), min_size=10, max_size=40),
    st.lists(st.integers(1, 60), min_size=10, max_size=40),
    budgets,
)
def test_two_clients_with_requests_all_along_get_the_same_share(
    first: list[int], second: list[int], budget: ChunkBudget
) -> None:
    """Within the longest of each (FairQueue), and what passes one that waits for its prefill until it is overdue."""
    trace = [(0, tokens, 3, client, 0) for client, lengths in enumerate((first, second)) for tokens in lengths]
    run = Run(trace, budget)
    run.go()
    served: Counter[int] = Counter()
    left = {0: len(first), 1: len(second)}
    for number in run.admitted:
        client = trace[number][3]
        served[client] += trace[number][1]
        left[client] -= 1
        if not all(left.values()):
            break
        assert abs(served[0] - served[1]) <= (2 + PATIENCE) * LONGEST
