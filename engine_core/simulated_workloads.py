"""What `engine_core.scheduler_simulation` lets arrive: the same requests in every run."""

import random

import msgspec


class SimulatedRequest(msgspec.Struct, frozen=True):
    """One request, and under which name it is counted."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    group: str
    client: int = 0
    follows: int | None = None
    """It arrives when the request with this place in the workload has ended, whatever `arrival_s` says."""


class Workload(msgspec.Struct, frozen=True):
    """Requests, those that follow none by arrival."""

    name: str
    requests: list[SimulatedRequest]


def workloads() -> list[Workload]:
    """All of them. Drawn with fixed seeds."""
    return [chat(), mixed(), join(), burst(), flood(), closed_loop(8), closed_loop(16), closed_loop(32)]


def chat() -> Workload:
    """Short prompts at random, 2 a second for 30 s: nothing to gain, nothing to lose."""
    draw = random.Random(1)
    arrivals = _arrivals(draw, per_s=2.0, until_s=30.0)
    return Workload(
        "short chat",
        [SimulatedRequest(at, draw.randint(20, 80), draw.randint(20, 80), "chat") for at in arrivals],
    )


def mixed() -> Workload:
    """A long prompt every 10 s among short ones."""
    draw = random.Random(2)
    requests = [SimulatedRequest(at, 40, 30, "short") for at in _arrivals(draw, per_s=1.0, until_s=60.0)]
    requests += [SimulatedRequest(float(at), 1_483, 20, "long") for at in range(0, 60, 10)]
    return Workload("long and short", sorted(requests, key=lambda request: request.arrival_s))


def join() -> Workload:
    """16 streams run; a prompt of 1,483 tokens joins them."""
    streams = [SimulatedRequest(0.0, 40, 200, "stream") for _ in range(16)]
    return Workload("long joins 16", [*streams, SimulatedRequest(10.0, 1_483, 10, "long")])


def burst() -> Workload:
    """8 prompts of 1,483 tokens at once."""
    return Workload("8 long at once", [SimulatedRequest(0.0, 1_483, 16, "long") for _ in range(8)])


def flood() -> Workload:
    """One client sends 100 requests at once; another sends one each 2 s meanwhile."""
    requests = [SimulatedRequest(0.0, 200, 40, "flood") for _ in range(100)]
    requests += [SimulatedRequest(float(at), 200, 40, "other", client=1) for at in range(1, 41, 2)]
    return Workload("one client floods", requests)


def closed_loop(clients: int, requests_each: int = 5) -> Workload:
    """Each client sends its next request when the one before has ended; all begin at once."""
    draw = random.Random(clients)
    requests = [
        SimulatedRequest(0.0, draw.randint(40, 128), 48, "closed", follows=None if place < clients else place - clients)
        for place in range(clients * requests_each)
    ]
    return Workload(f"{clients} in closed loop", requests)


def _arrivals(draw: random.Random, per_s: float, until_s: float) -> list[float]:
    arrivals, now_s = [], draw.expovariate(per_s)
    while now_s < until_s:
        arrivals.append(now_s)
        now_s += draw.expovariate(per_s)
    return arrivals
