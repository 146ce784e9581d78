"""Drives a real engine core in process: requests in, steps of the device one by one, with their times.

It is what engine_core.busy_loop does, without threads and sockets, and in the caller's hands.
"""

import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from engine_core.chunk_budget import TimedChunkBudget
from engine_core.core import EngineCore
from engine_core.device import OpenedModel, StepPlan
from engine_core.events import RequestArrived, RequestsAborted
from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.identifiers import ClientIndex, new_request_id
from protocol.messages import EngineCoreRequest, RequestKey
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams

MAX_NUM_BATCHED_TOKENS = 512
_ENDLESS = 4096
"""Output tokens of requests that a scenario ends itself."""


class StepTime(msgspec.Struct, frozen=True):
    """One step."""

    wall_s: float
    """Since the step before it was collected, or since it was asked for when the device was idle."""
    prefill_tokens: int
    decode_rows: int


class EngineDriver:
    """Owner of an engine core and its device; all requests come from one client."""

    def __init__(self, opened: OpenedModel, max_num_seqs: int, seed: int) -> None:
        self.opened = opened
        device = opened.device
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(MAX_NUM_BATCHED_TOKENS, max_num_seqs),
            max_model_len=opened.card.max_model_len,
            kv_capacity_tokens=device.kv_capacity_tokens,
            pool_lengths=tuple(device.pool_lengths),
        )
        chunk_budget = TimedChunkBudget(limits.max_num_batched_tokens)
        self._core = EngineCore(Scheduler(limits, opened.card.eos_token_ids, chunk_budget), drain_timeout_s=0)
        self._random = Random(seed)
        self._root = prefix_root("bench", "", "")
        self._live: set[RequestKey] = set()
        self._in_flight: deque[StepPlan] = deque()
        self._collected_s = 0.0

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def tokens(self, count: int) -> list[int]:
        """Random token ids."""
        return self._random.choices(range(self.opened.card.vocab_size), k=count)

    def add(self, prompt: Sequence[int], max_tokens: int = _ENDLESS, *, shares_prefix: bool = False) -> RequestKey:
        """A greedy request that only `max_tokens` ends; its prefix is looked up and stored if asked."""
        most = self.opened.card.max_model_len - len(prompt)
        if most < 1:
            raise ValueError(f"a prompt of {len(prompt)} tokens is too long for the model or its KV cache")
        sampling = SamplingParams(max_tokens=min(max_tokens, most), temperature=0, ignore_eos=True)
        request = EngineCoreRequest(
            new_request_id("bench"), ClientIndex(0), 0, self.opened.card.name, len(prompt), sampling, 0.0
        )
        chain = prefix_chain(self._root, prompt) if shares_prefix else ()
        ended = self._core.handle(RequestArrived(request, array("I", prompt), chain), time.monotonic())
        assert not ended, "the request was refused"
        self._live.add(request.key)
        return request.key

    def abort(self, keys: Sequence[RequestKey]) -> None:
        """Ends requests."""
        self._core.handle(RequestsAborted(list(keys)), time.monotonic())
        self._live.difference_update(keys)

    def clear(self) -> None:
        """Ends all requests and runs what is left to be done."""
        self.abort(list(self._live))
        for _ in self.steps():
            pass
        self._core.check_invariants()

    def fill(self, rows: int, context: int) -> list[RequestKey]:
        """So many requests with so many tokens in front of them, all decoding when this returns.

        They share all but the last token, so that a device that stores prefixes computes them only once.
        """
        common = self.tokens(context - 1)
        keys = []
        for more in (1, rows - 1):
            keys += [self.add([*common, *self.tokens(1)], shares_prefix=True) for _ in range(more)]
            for step in self.steps():
                if step.decode_rows == len(keys) and not step.prefill_tokens:
                    break
        return keys

    def steps(self, *, lookahead: bool = False, host_work_s: float = 0.0) -> Iterator[StepTime]:
        """Runs steps until there is nothing to do, or the caller stops asking.

        With `lookahead` a step is submitted before the one before it is collected. `host_work_s` of computing follow
        each collected step, as if its tokens were handled in this thread.
        """
        self._collected_s = time.perf_counter()
        while True:
            plan = self._core.plan()
            if plan is not None:
                self.opened.device.submit(plan)
                self._in_flight.append(plan)
            if not self._in_flight:
                return
            if plan is None or len(self._in_flight) > int(lookahead):
                yield self._collect()
                _compute(host_work_s)

    def finish_in_flight(self) -> None:
        """Collects what was submitted: after `steps` with lookahead was left early."""
        while self._in_flight:
            self._collect()

    def _collect(self) -> StepTime:
        result = self.opened.device.collect()
        now_s = time.perf_counter()
        plan = self._in_flight.popleft()
        self._note_ends(self._core.complete(result, time.monotonic()))
        wall_s, self._collected_s = now_s - self._collected_s, now_s
        prefill_tokens = sum(len(chunk.token_ids) for chunk in plan.prefills)
        return StepTime(wall_s, prefill_tokens, len(plan.decodes))

    def _note_ends(self, outputs: OutputsByClient) -> None:
        for output in outputs.get(ClientIndex(0), ()):
            assert output.error is None, output.error
            if output.finish_reason is not None:
                self._live.discard(output.key)


def _compute(seconds: float) -> None:
    """Keeps this thread busy, as Python code does."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass
