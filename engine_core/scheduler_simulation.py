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
from engine_core.device import StepPlan
from engine_core.fair_queue import PATIENCE
from engine_core.scheduler import OutputsByClient, Scheduler, SchedulerLimits
from engine_core.simulated_workloads import SimulatedRequest, Workload, workloads
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

MAX_NUM_SEQS = 32
MAX_MODEL_LEN = 2_048
ALL_AT_ONCE_TOKENS = 65_536


class CostModel(msgspec.Struct, frozen=True):
    """The time of a step. The defaults are about those of the demo model on 2 x86 cores, idle otherwise."""

    decode_ms: float = 60.0
    """Of a forward over decode rows, whatever their number."""
    decode_ms_per_row: float = 0.4
    chunk_ms: float = 35.0
    """Of a forward over a chunk, whatever its length."""
    prefill_ms_per_token: float = 2.3
    attention_us: float = 13.0
    """Of one decode row and one token of its context."""
    prefill_attention_us: float = 1.0
    """Of one token of prefill and one of its context."""
    noise: float = 0.05
    """A step takes up to this share more or less."""

    def step_s(self, plan: StepPlan) -> float:
        """Seconds, without noise."""
        milliseconds = self.decode_ms if plan.decodes else 0.0
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
            kv_capacity_tokens=MAX_NUM_SEQS * MAX_MODEL_LEN,
            patience=self.patience,
        )
        return Scheduler(limits, [], self.chunk_budget(self.max_num_batched_tokens))


ALL_AT_ONCE = Policy("all at once", ALL_AT_ONCE_TOKENS, 0, FixedChunkBudget)
FIXED = Policy("first come, 512 tokens", 512, 0, FixedChunkBudget)
TIMED = Policy("shortest first, timed", 512, PATIENCE, TimedChunkBudget)
POLICIES = (ALL_AT_ONCE, FIXED, TIMED)


class TokenTimes(msgspec.Struct):
    """When the tokens of one request came, in seconds since its arrival."""

    request: SimulatedRequest
    times_s: list[float] = []

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.times_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.times_s)]


def simulate(workload: Workload, policy: Policy) -> list[TokenTimes]:
    """Runs the workload to its end at the default costs. Deterministic."""
    return Simulation(workload, policy, CostModel()).run()


class Simulation:
    """Owner of the clock of one run."""

    def __init__(self, workload: Workload, policy: Policy, cost: CostModel) -> None:
        self._scheduler = policy.scheduler()
        self._cost = cost
        self._times = {RequestId(f"r{n}"): TokenTimes(request) for n, request in enumerate(workload.requests)}
        self._arriving = list(self._times.items())
        self._random = random.Random(0)
        self._now_s = 0.0

    def run(self) -> list[TokenTimes]:
        """The token times of each request, in the order of the workload."""
        while self._arriving or self._scheduler.has_requests:
            if not self._scheduler.has_requests:
                self._now_s = max(self._now_s, self._arriving[0][1].request.arrival_s)
            self._take_arrivals()
            plan = self._scheduler.plan()
            elapsed_s = self._cost.step_s(plan) * (1 + self._cost.noise * self._random.uniform(-1, 1))
            self._now_s += elapsed_s
            self._note(self._scheduler.update([0] * len(plan.decodes), elapsed_s))
        return list(self._times.values())

    def _take_arrivals(self) -> None:
        while self._arriving and self._arriving[0][1].request.arrival_s <= self._now_s:
            name, times = self._arriving.pop(0)
            request = times.request
            sampling = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
            prompt = array("I", [len(self._arriving)] * request.prompt_tokens)
            client = ClientIndex(request.client)
            message = EngineCoreRequest(name, client, 0, "sim", len(prompt), sampling, request.arrival_s)
            assert not self._scheduler.add(message, prompt), "a workload has requests that can run"

    def _note(self, outputs: OutputsByClient) -> None:
        for output in (output for of_client in outputs.values() for output in of_client):
            times = self._times[output.request_id]
            times.times_s.append(self._now_s - times.request.arrival_s)


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many per cent of the values do not exceed. Raises IndexError when there is none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def table() -> list[str]:
    """The lines that are printed: milliseconds, by workload, policy and group of requests."""
    lines = [
        f"{'workload':<18} {'policy':<23} {'group':<7} {'TTFT p50':>9} {'p95':>7} {'max':>7} "
        f"{'ITL p50':>9} {'p99':>6} {'longest':>8}"
    ]
    for workload in workloads():
        for policy in POLICIES:
            times = simulate(workload, policy)
            for group in dict.fromkeys(request.group for request in workload.requests):
                lines.append(f"{workload.name:<18} {policy.name:<23} {group:<7} " + _figures(times, group))
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
