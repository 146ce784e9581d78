"""What scheduling policies do to the times that clients see: `python -m engine_core.scheduler_simulation`.

The scheduler is the real one; the device is a formula for the time of a step, and the clock is the sum of these
times. All is seeded: two runs print the same. The times are simulated and must be called so; what they are good for
is the comparison of policies.
"""

import math
import random
from array import array
from collections.abc import Callable
from itertools import pairwise

import msgspec

from engine_core.chunk_budget import ChunkBudget, FixedChunkBudget, TimedChunkBudget
from engine_core.device import StepPlan, StepResult
from engine_core.fair_queue import PATIENCE
from engine_core.pool_lengths import pool_lengths
from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.simulated_workloads import SimulatedRequest, Workload, workloads
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

MAX_NUM_SEQS = 32
MAX_MODEL_LEN = 2_048
ALL_AT_ONCE_TOKENS = 65_536


class CostModel(msgspec.Struct, frozen=True):
    """The time of a step, all tokens of which run in one forward.

    The defaults are about those of the demo model on 2 x86 cores, idle otherwise: 58, 78 and 146 ms for 1, 8 and 32
    decode rows at a context of 64 tokens.
    """

    step_ms: float = 55.0
    """Of a forward, whatever is in it."""
    chunk_ms: float = 0.0
    """More for each chunk: for models whose chunks are forwards of their own."""
    decode_ms_per_row: float = 2.0
    prefill_ms_per_token: float = 2.4
    attention_us: float = 13.0
    """Of one decode row and one token of its context."""
    prefill_attention_us: float = 1.0
    """Of one token of prefill and one of its context."""
    noise: float = 0.05
    """A step takes up to this share more or less."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds, without noise."""
        milliseconds = self.step_ms if plan.decodes or plan.prefills else 0.0
        for decode in plan.decodes:
            milliseconds += self.decode_ms_per_row + decode.start * self.attention_us / 1_000
        for chunk in plan.prefills:
            tokens = len(chunk.token_ids)
            context = chunk.start + tokens / 2
            milliseconds += self.chunk_ms + tokens * self.prefill_ms_per_token
            milliseconds += tokens * context * self.prefill_attention_us / 1_000
        return milliseconds / 1_000


class Policy(msgspec.Struct, frozen=True):
    """What is compared."""

    name: str
    max_num_batched_tokens: int
    patience: int
    chunk_budget: Callable[[int], ChunkBudget]

    def scheduler(self) -> Scheduler:
        """A new one with this policy."""
        limits = SchedulerLimits(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            kv_capacity_tokens=2 * MAX_NUM_SEQS * MAX_MODEL_LEN,
            pool_lengths=pool_lengths(MAX_MODEL_LEN),
            patience=self.patience,
        )
        return Scheduler(limits, [], self.chunk_budget(self.max_num_batched_tokens))


ALL_AT_ONCE = Policy("all at once", ALL_AT_ONCE_TOKENS, 0, FixedChunkBudget)
FIXED = Policy("first come, 512 tokens", 512, 0, FixedChunkBudget)
TIMED = Policy("shortest first, timed", 512, PATIENCE, TimedChunkBudget)
POLICIES = (ALL_AT_ONCE, FIXED, TIMED)


class TokenTimes(msgspec.Struct):
    """When one request and its tokens came, in seconds since the beginning."""

    request: SimulatedRequest
    arrival_s: float
    at_s: list[float] = []

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.at_s[0] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.at_s)]


def simulate(workload: Workload, policy: Policy, cost: CostModel | None = None) -> list[TokenTimes]:
    """Runs the workload to its end, at the default costs if none are given. Deterministic."""
    return Simulation(workload, policy, cost or CostModel()).run()


class Simulation:
    """Owner of the clock of one run."""

    def __init__(self, workload: Workload, policy: Policy, cost: CostModel) -> None:
        self._scheduler = policy.scheduler()
        self._cost = cost
        self._times = {RequestId(f"r{n}"): TokenTimes(r, r.arrival_s) for n, r in enumerate(workload.requests)}
        self._arriving = [(name, times) for name, times in self._times.items() if times.request.follows is None]
        self._followers = {RequestId(f"r{times.request.follows}"): name for name, times in self._times.items()}
        self._arrived = 0
        self._random = random.Random(0)
        self._now_s = 0.0

    def run(self) -> list[TokenTimes]:
        """The token times of each request, in the order of the workload."""
        while self._arriving or self._scheduler.has_requests:
            if not self._scheduler.has_requests:
                self._now_s = max(self._now_s, self._arriving[0][1].arrival_s)
            self._take_arrivals()
            self._step()
        return list(self._times.values())

    def _step(self) -> None:
        plan = self._scheduler.plan()
        assert plan is not None, "there are requests, and nothing is in flight"
        elapsed_s = self._cost.step_s(plan) * (1 + self._cost.noise * self._random.uniform(-1, 1))
        self._now_s += elapsed_s
        self._note(self._scheduler.update(StepResult([0] * len(plan.decodes), elapsed_s)))

    def _take_arrivals(self) -> None:
        while self._arriving and self._arriving[0][1].arrival_s <= self._now_s:
            name, times = self._arriving.pop(0)
            request = times.request
            sampling = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
            prompt = array("I", [self._arrived] * request.prompt_tokens)
            self._arrived += 1
            client = ClientIndex(request.client)
            message = EngineCoreRequest(name, client, 0, "sim", len(prompt), sampling, times.arrival_s)
            assert not self._scheduler.add(message, prompt), "a workload has requests that can run"

    def _note(self, outputs: OutputsByClient) -> None:
        for output in (output for of_client in outputs.values() for output in of_client):
            self._times[output.request_id].at_s.append(self._now_s)
            follower = self._followers.get(output.request_id)
            if output.finish_reason is not None and follower is not None:
                times = self._times[follower]
                times.arrival_s = self._now_s
                self._arriving.insert(0, (follower, times))


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many per cent of the values do not exceed. Raises IndexError when there is none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def tokens_per_s(times: list[TokenTimes]) -> float:
    """Output tokens of all requests, by the time in which they came."""
    return sum(len(each.at_s) for each in times) / max(each.at_s[-1] for each in times)


def table() -> list[str]:
    """The lines that are printed: milliseconds, by workload, policy and group of requests."""
    lines = [
        f"{'workload':<18} {'policy':<23} {'group':<7} {'TTFT p50':>9} {'p95':>7} {'max':>7} "
        f"{'ITL p50':>9} {'p99':>6} {'longest':>8} {'all: tokens/s':>14}"
    ]
    for workload in workloads():
        for policy in POLICIES:
            times = simulate(workload, policy)
            for group in dict.fromkeys(request.group for request in workload.requests):
                figures = f"{_figures(times, group)} {tokens_per_s(times):14.1f}"
                lines.append(f"{workload.name:<18} {policy.name:<23} {group:<7} {figures}")
    return lines


def _figures(times: list[TokenTimes], group: str) -> str:
    of_group = [each for each in times if each.request.group == group]
    ttfts = [each.ttft_s * 1_000 for each in of_group]
    gaps = [gap * 1_000 for each in of_group for gap in each.gaps_s]
    return (
        f"{percentile(ttfts, 50):9.0f} {percentile(ttfts, 95):7.0f} {max(ttfts):7.0f} "
        f"{percentile(gaps, 50):9.0f} {percentile(gaps, 99):6.0f} {max(gaps):8.0f}"
    )


if __name__ == "__main__":
    print("\n".join(table()))
