"""Adds, aborts, lost clients, plans and results in any order: what scheduler_world promises holds."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_world import World
from token_device import VOCABULARY, doubled_lengths

from engine_core.scheduler_limits import SchedulerLimits
from protocol.messages import RequestKey
from protocol.sampling import SamplingParams

MAX_MODEL_LEN = 3 * 256 + 1

prompts = st.one_of(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    st.sampled_from([200, 240, 250, 256, 500, 510, 512, 700, 767, 768, 769]).map(
        lambda length: [length % VOCABULARY] * length
    ),
    st.tuples(st.sampled_from([63, 64, 65, 127, 128, 129, 130, 500]), st.integers(0, VOCABULARY - 1)).map(
        lambda drawn: [7] * (drawn[0] - 1) + [drawn[1]]
    ),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Small limits, so that rows and memory run short."""

    world: World | None = None

    @initialize(
        rows=st.integers(1, 4),
        budget=st.integers(4, 200),
        capacity=st.sampled_from([768, 768, 832, 1_024, 1_100, 1_536, 2_048, 3_072]),
        shortest=st.sampled_from([64, 96, 256, 768]),
        growth=st.integers(0, 64),
        lookahead=st.booleans(),
        stores_prefixes=st.sampled_from([True, True, True, False]),
        checkpoint_tokens=st.sampled_from([0, 0, 1, 64, 100]),
    )
    def start(
        self,
        rows: int,
        budget: int,
        capacity: int,
        shortest: int,
        growth: int,
        lookahead: bool,
        stores_prefixes: bool,
        checkpoint_tokens: int,
    ) -> None:
        limits = SchedulerLimits(
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            kv_capacity_tokens=capacity,
            pool_lengths=doubled_lengths(shortest, MAX_MODEL_LEN - 1),
            growth_tokens=growth,
            checkpoint_tokens=checkpoint_tokens,
        )
        self.world = World(limits, lookahead=lookahead, stores_prefixes=stores_prefixes)

    @property
    def now(self) -> World:
        assert self.world is not None
        return self.world

    @rule(
        prompt=prompts,
        max_tokens=st.sampled_from([1, 2, 5, 30, 300]),
        priority=st.integers(0, 2),
        client=st.integers(0, 2),
        ignore_eos=st.booleans(),
        logprobs=st.sampled_from([None, None, 0]),
    )
    def add(
        self, prompt: list[int], max_tokens: int, priority: int, client: int, ignore_eos: bool, logprobs: int | None
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, logprobs=logprobs)
        self.now.add(prompt, sampling, priority, client)

    @rule(lengths=st.lists(st.sampled_from([240, 250, 500, 510]), min_size=3, max_size=6), priority=st.integers(0, 1))
    def add_some_that_outgrow_the_cache_together(self, lengths: list[int], priority: int) -> None:
        for number, length in enumerate(lengths):
            self.now.add([number] * length, SamplingParams(max_tokens=30, ignore_eos=True), priority)

    @precondition(lambda self: self.world and self.world.requests)
    @rule(data=st.data(), resumed=st.sampled_from([None, 0, 1, 20]))
    def add_again(self, data: st.DataObject, resumed: int | None) -> None:
        key = self._draw(data)
        if resumed is None:
            self.now.add_again(key)
        else:
            self.now.add_newer_attempt(key, resumed)

    @precondition(lambda self: self.world and any(key.attempt for key in self.world.requests))
    @rule(data=st.data())
    def add_an_older_attempt(self, data: st.DataObject) -> None:
        key = self._draw(data)
        if key.attempt > 0:
            self.now.add_older_attempt(key)

    @precondition(lambda self: self.world and self.world.requests)
    @rule(data=st.data(), number=st.integers(1, 3))
    def abort(self, data: st.DataObject, number: int) -> None:
        self.now.abort([self._draw(data) for _ in range(number)])

    @rule(client=st.integers(0, 2))
    def lose_client(self, client: int) -> None:
        self.now.lose_client(client)

    @precondition(lambda self: self.world and self.world.can_submit)
    @rule()
    def submit(self) -> None:
        self.now.submit()

    @precondition(lambda self: self.world and self.world.in_flight)
    @rule()
    def collect(self) -> None:
        self.now.collect()

    @rule(steps=st.integers(1, 60))
    def many_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.now.step()

    def _draw(self, data: st.DataObject) -> RequestKey:
        return data.draw(st.sampled_from(sorted(self.now.requests, key=str)))

    @invariant()
    def state_is_sound(self) -> None:
        if self.world is not None:
            self.world.check()

    def teardown(self) -> None:
        if self.world is not None:
            self.world.finish()


SchedulerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
