"""Whatever happens in whatever order: every request ends once, with the tokens that it would get alone."""

from array import array

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from token_device import VOCABULARY, TokenDevice, output_alone

from engine_core.device import StepPlan
from engine_core.scheduler import OutputsByClient, Scheduler, SchedulerLimits
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestKey
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

EOS = 3
MAX_MODEL_LEN = 3 * 256 + 1


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, lost clients, plans and updates in any order; small limits, so that rows and memory run short."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[RequestKey, list[int]] = {}
        self.requests: dict[RequestKey, EngineCoreRequest] = {}
        self.outputs: dict[RequestKey, list[EngineCoreOutput]] = {}
        self.silenced: set[RequestKey] = set()
        """Aborted, superseded or without a client: no output may come any more."""
        self.ended: list[RequestKey] = []
        self.salts: dict[RequestId, str] = {}
        self.stores_prefixes = True
        self.plan: StepPlan | None = None
        self.numbers = 0
        self.started = False

    @initialize(
        rows=st.integers(1, 4),
        budget=st.integers(4, 200),
        steps=st.integers(3, 12),
        room=st.integers(0, 64),
        stores_prefixes=st.sampled_from([True, True, True, False]),
    )
    def start(self, rows: int, budget: int, steps: int, room: int, stores_prefixes: bool) -> None:
        self.stores_prefixes = stores_prefixes
        limits = SchedulerLimits(
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            kv_capacity_tokens=steps * 256,
            growth_room_tokens=room,
        )
        self.device = TokenDevice(limits.kv_capacity_tokens, rows, budget)
        self.scheduler = Scheduler(limits, [EOS])
        self.started = True

    @rule(
        prompt=st.one_of(
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
            st.sampled_from([200, 240, 250, 256, 500, 510, 512, 700, 767, 768, 769]).map(
                lambda length: [length % VOCABULARY] * length
            ),
            st.tuples(st.sampled_from([63, 64, 65, 127, 128, 129, 130, 500]), st.integers(0, VOCABULARY - 1)).map(
                lambda drawn: [7] * (drawn[0] - 1) + [drawn[1]]
            ),
        ),
        max_tokens=st.sampled_from([1, 2, 5, 30, 300]),
        priority=st.integers(0, 2),
        client=st.integers(0, 2),
        ignore_eos=st.booleans(),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, client: int, ignore_eos: bool) -> None:
        self.numbers += 1
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        self._add(RequestId(f"r{self.numbers}"), 0, prompt, sampling, priority, client)

    def _add(
        self, name: RequestId, attempt: int, prompt: list[int], sampling: SamplingParams, priority: int, client: int
    ) -> None:
        added = EngineCoreRequest(
            name, ClientIndex(client), attempt, "m", len(prompt), sampling, arrival_time_s=0.0, priority=priority
        )
        self.salts.setdefault(name, "other salt" if len(self.salts) % 3 == 2 else "")
        self.requests[added.key] = added
        self.prompts[added.key] = prompt
        self._hand_over(added)

    def _hand_over(self, request: EngineCoreRequest) -> None:
        prompt = self.prompts[request.key]
        chain = (
            prefix_chain(prefix_root("m", "", self.salts[request.request_id]), prompt) if self.stores_prefixes else ()
        )
        self._collect(self.scheduler.add(request, array("I", prompt), chain))

    @rule(lengths=st.lists(st.sampled_from([240, 250, 500, 510]), min_size=3, max_size=6), priority=st.integers(0, 1))
    def add_some_that_outgrow_the_cache_together(self, lengths: list[int], priority: int) -> None:
        for length in lengths:
            self.numbers += 1
            sampling = SamplingParams(max_tokens=30, ignore_eos=True)
            self._add(RequestId(f"r{self.numbers}"), 0, [self.numbers % VOCABULARY] * length, sampling, priority, 0)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), newer=st.booleans())
    def add_again(self, data: st.DataObject, newer: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.requests, key=str)))
        newest = max(k.attempt for k in self.requests if k.request_id == key.request_id)
        request = self.requests[RequestKey(key.request_id, newest)]
        if newer:
            live = self._live()
            self.silenced.update(k for k in live if k.request_id == key.request_id)
            self._add(
                key.request_id, newest + 1, self.prompts[key], request.sampling, request.priority, request.client_index
            )
        elif request.key in self._live():
            self._hand_over(request)

    @precondition(lambda self: any(key.attempt for key in self._live()))
    @rule(data=st.data())
    def add_an_older_attempt(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in self._live() if key.attempt]))
        request = self.requests[key]
        late = RequestKey(key.request_id, -1)
        if late not in self.requests:
            self.silenced.add(late)
            self._add(late.request_id, -1, self.prompts[key], request.sampling, 0, request.client_index)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.requests, key=str)), max_size=3))
        self.silenced.update(keys)
        self.scheduler.abort(keys)

    @rule(client=st.integers(0, 2))
    def lose_client(self, client: int) -> None:
        self.silenced.update(k for k in self._live() if self.requests[k].client_index == client)
        self.scheduler.drop_client(ClientIndex(client))

    @precondition(lambda self: self.plan is None)
    @rule()
    def make_plan(self) -> None:
        self.plan = self.scheduler.plan()
        self.scheduler.check_invariants()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def run_plan(self) -> None:
        assert self.plan is not None
        self._collect(self.scheduler.update(self.device.run(self.plan)))
        self.plan = None

    @rule(steps=st.integers(1, 60))
    def many_steps(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        if self.plan is None:
            self.make_plan()
        self.run_plan()

    def _live(self) -> list[RequestKey]:
        return [key for key, _, _ in self.scheduler.live_requests()]

    def _collect(self, outputs: OutputsByClient) -> None:
        for client, outs in outputs.items():
            for output in outs:
                assert output.key not in self.silenced, "an output after the end"
                assert self.requests[output.key].client_index == client
                before = self.outputs.setdefault(output.key, [])
                assert not before or before[-1].finish_reason is None, "an output after the last"
                assert output.position == sum(len(o.token_ids) for o in before), "a gap"
                before.append(output)

    @invariant()
    def state_is_sound(self) -> None:
        if self.started:
            self.scheduler.check_invariants()
            self.ended += self.scheduler.take_ended()

    def teardown(self) -> None:
        if not self.started:
            return
        for _ in range(20_000):
            if not self.scheduler.has_work and self.plan is None:
                break
            self._step()
        self.scheduler.check_invariants()
        self.ended += self.scheduler.take_ended()
        assert not self.scheduler.has_requests, "it does not come to an end"
        assert self.device.rows == {}
        assert self.scheduler.load().kv_used_tokens == 0
        assert self.stores_prefixes or not self.device.blocks
        assert sorted(self.ended, key=str) == sorted(self.requests, key=str), "not every request ended exactly once"
        for key in self.requests:
            if key not in self.silenced:
                self._check_whole(key)

    def _check_whole(self, key: RequestKey) -> None:
        outputs, prompt, sampling = self.outputs[key], self.prompts[key], self.requests[key].sampling
        tokens = [token for output in outputs for token in output.token_ids]
        if len(prompt) >= MAX_MODEL_LEN:
            assert (outputs[-1].finish_reason, tokens) == (FinishReason.ERROR, [])
            return
        expected = output_alone(prompt, min(sampling.max_tokens, MAX_MODEL_LEN - len(prompt)))
        if EOS in expected and not sampling.ignore_eos:
            expected = expected[: expected.index(EOS) + 1]
            assert outputs[-1].finish_reason is FinishReason.STOP
        else:
            assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert tokens == expected


SchedulerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
