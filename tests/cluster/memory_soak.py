"""Overload for as long as asked, and what it does to the memory of the engine core: `make soak`.

A real `shoal serve` of the demo model with a small KV cache, and more clients than it has rows: they send prompts of
all lengths, read their answers, leave in the middle, and come again. The engine core must give each request that its
client waited for one whole answer (or a refusal that says to come again), must never take more memory than its
weights, its KV cache and an allowance, and must have as much afterwards as it had after a first such load: by then
stored prefixes fill their share of the KV cache, and what is made only once is made.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from typing import Any

import httpx
import msgspec
import psutil
from shoal_process import ShoalProcess, running_shoal

MODEL = "SmolLM2-135M-Instruct"
KV_CACHE_BYTES = 128 * 2**20
ALLOWANCE_BYTES = 256 * 2**20
"""Beyond what it takes when it has just started, weights included, and the KV cache: a forward's activations (the
vocabulary's logits of all rows, in a few copies), freed buffers that MLX or the C library keep, Python's own growth.
Up to 170 MiB were seen."""
KEPT_SHARE = 1.1
"""Afterwards it has at most so much of what it had after the first load."""
CLIENTS = 40
ROWS = 16
SERVE_ARGUMENTS = (
    "demo",
    *("--engines", "1"),
    *("--api-servers", "1"),
    *("--max-num-seqs", str(ROWS)),
    *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
)
PATIENCE_S = 600.0
"""A request that takes longer was left hanging."""
SAMPLE_S = 0.25
FIRST_LOAD_S = 5.0
WORDS = ("red", "blue", "fish", "salt", "wind", "stone", "river", "seven")


class SoakResult(msgspec.Struct):
    """What was seen."""

    started_bytes: int
    """Resident memory of the engine core when it has just started."""
    before_bytes: int = 0
    """After a first load, idle."""
    peak_bytes: int = 0
    after_bytes: int = 0
    """Idle again."""
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    """Requests by how they ended: whole, left (by the client), refused; anything else is a fault."""
    faults: list[str] = msgspec.field(default_factory=list)
    preemptions: int = 0
    output_tokens: int = 0

    @property
    def limit_bytes(self) -> int:
        """Most that the engine core may take."""
        return self.started_bytes + KV_CACHE_BYTES + ALLOWANCE_BYTES

    def check(self) -> None:
        """Raises AssertionError, which says what is wrong."""
        assert not self.faults, f"{len(self.faults)} requests got no proper answer: {self.faults[:5]}"
        assert self.answers["whole"] > 0
        assert self.peak_bytes <= self.limit_bytes, f"{self}: it took more than {self.limit_bytes} bytes"
        assert self.after_bytes <= self.before_bytes * KEPT_SHARE, f"{self}: it kept what it took"

    def __str__(self) -> str:
        sizes = (self.started_bytes, self.before_bytes, self.peak_bytes, self.limit_bytes, self.after_bytes)
        started, before, peak, limit, after = (f"{size / 2**20:.0f}" for size in sizes)
        answers = ", ".join(f"{count} {kind}" for kind, count in sorted(self.answers.items()))
        return (
            f"engine core: {started} MiB at its start, {before} after a first load, {peak} at most (limit {limit}), "
            f"{after} in the end; requests: {answers}; {self.output_tokens} tokens out, {self.preemptions} preemptions"
        )


def soak(shoal: ShoalProcess, duration_s: float, clients: int = CLIENTS, seed: int = 0) -> SoakResult:
    """Puts load on a cluster that has just started, for so long; returns what was seen, without judging it."""
    result = SoakResult(started_bytes=resident_bytes(shoal))
    asyncio.run(_load(shoal, result, clients, random.Random(seed), max(FIRST_LOAD_S, duration_s / 10)))
    wait_idle(shoal)
    result.before_bytes = resident_bytes(shoal)
    asyncio.run(_load(shoal, result, clients, random.Random(seed + 1), duration_s))
    wait_idle(shoal)
    result.after_bytes = resident_bytes(shoal)
    result.preemptions = int(shoal.metric("shoal:num_preemptions_total"))
    return result


def resident_bytes(shoal: ShoalProcess) -> int:
    """Of the engine core."""
    (engine,) = shoal.children("engine-core")
    return int(engine.memory_info().rss)


def wait_idle(shoal: ShoalProcess) -> None:
    """Until nothing runs or waits any more."""
    gauges = ("shoal:num_requests_running", "shoal:num_requests_waiting", "shoal:http_requests_in_flight")
    shoal.wait_for(lambda: all(shoal.metric(name) == 0 for name in gauges), PATIENCE_S, "something is left running")


async def _load(shoal: ShoalProcess, result: SoakResult, clients: int, rng: random.Random, duration_s: float) -> None:
    end_s = time.monotonic() + duration_s
    (engine,) = shoal.children("engine-core")
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=shoal.url, timeout=PATIENCE_S, limits=limits) as client:
        sampling = asyncio.create_task(_sample(engine, result))
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(_client(client, result, random.Random(rng.random()), end_s))
        sampling.cancel()


async def _sample(engine: psutil.Process, result: SoakResult) -> None:
    while True:
        result.peak_bytes = max(result.peak_bytes, int(engine.memory_info().rss))
        await asyncio.sleep(SAMPLE_S)  # a measurement in time, not a wait for something


async def _client(client: httpx.AsyncClient, result: SoakResult, rng: random.Random, end_s: float) -> None:
    while time.monotonic() < end_s:
        leaves_after = rng.randrange(6) if rng.random() < 0.2 else None
        try:
            result.answers[await _request(client, _body(rng), leaves_after, result)] += 1
        except (httpx.HTTPError, AssertionError) as error:
            result.answers["fault"] += 1
            result.faults.append(repr(error))
        await asyncio.sleep(rng.random() * 0.1)


def _body(rng: random.Random) -> dict[str, Any]:
    """Mostly short prompts, some long ones; some that begin alike."""
    words = rng.choice([5, 20, 60, 60, 200, 700])
    start = "You are a helpful assistant who answers in few words. " * 4 if rng.random() < 0.3 else ""
    return {
        "model": MODEL,
        "prompt": start + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, words))),
        "max_tokens": rng.choice([1, 8, 24, 64]),
        "ignore_eos": True,
        "temperature": rng.choice([0, 0.8]),
        "top_p": 0.95,
        "presence_penalty": rng.choice([0, 0.5]),
        "stream": True,
    }


async def _request(
    client: httpx.AsyncClient, body: dict[str, Any], leaves_after: int | None, result: SoakResult
) -> str:
    """How it ended. Raises AssertionError for an answer that is no proper one."""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code in (429, 503):
            assert "error" in msgspec.json.decode(await response.aread())
            return "refused"
        assert response.status_code == 200, await response.aread()
        lines: list[str] = []
        async for line in response.aiter_lines():
            if len(lines) == leaves_after:
                return "left"
            lines += [line] if line.startswith("data: ") else []  # not the comments while it waits
    assert lines[-1] == "data: [DONE]", lines[-3:]
    choices = [choice for line in lines[:-1] for choice in msgspec.json.decode(line[len("data: ") :])["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"], lines[-3:]
    result.output_tokens += body["max_tokens"]
    return "whole"


def main() -> int:
    """Prints the figures; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="fixes prompts and lengths")
    arguments = parser.parse_args()
    with running_shoal(*SERVE_ARGUMENTS) as shoal:
        result = soak(shoal, arguments.minutes * 60, seed=arguments.seed)
    print(result)
    try:
        result.check()
    except AssertionError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
