"""Random strikes against a real cluster of simulated engine cores under load, for as long as one likes.

Engine cores are killed, frozen and drained, the coordinator is killed and frozen for a while, one strike a second on
whatever is alive. 64 clients stream all along; each stream must be whole and have the tokens of an undisturbed one. New
requests may be answered with 503 while no engine core is up: their supervisor starts those that die often later and
later. Rarely three engine cores in a row die before a request's next token: then it is taken for their poison.

    python tests/chaos/random_chaos.py --seconds 600 --seed 1        (PYTHONPATH: tests/cluster)
"""

import argparse
import asyncio
import random
import signal
import time
from collections import Counter

import httpx
import psutil
from chaos_cluster import SIM, assert_back_and_idle, resumed
from chaos_streams import Stream, bodies, follow, run_streams
from shoal_process import ShoalProcess, running_shoal

CLIENTS = 64
ENGINES = 4
MAX_TOKENS = 100
STRIKE_EVERY_S = 1.0
EJECTED_AFTER_S = 4.0
"""A coordinator that dies before it has missed a frozen engine core leaves one that the next one never meets, and
that nobody ends: this one thing is not done here."""


class Strikes:
    """Who was struck, and how."""

    def __init__(self, shoal: ShoalProcess, seed: int) -> None:
        self._shoal = shoal
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(STRIKE_EVERY_S)
            try:
                await self._strike()
            except psutil.NoSuchProcess:
                self.counts["too late"] += 1

    async def _strike(self) -> None:
        role = self._random.choice(["engine-core"] * ENGINES + ["coordinator"])
        alive = self._shoal.children(role)
        if not alive:
            return
        victim = self._random.choice(alive)
        strike = self._random.choice(["killed", "killed", "frozen", "drained"])
        if role == "coordinator" and strike == "drained":
            strike = "killed"
        match strike:
            case "killed":
                victim.kill()
            case "drained":
                victim.send_signal(signal.SIGTERM)
            case _:
                victim.suspend()
        if strike == "frozen" and role == "coordinator":
            await asyncio.sleep(self._random.uniform(0.2, 4.0))
            victim.resume()  # nobody kills it: it would stay so
        elif strike == "frozen":
            await asyncio.sleep(EJECTED_AFTER_S)
        self.counts[f"{role} {strike}"] += 1


async def client(http: httpx.AsyncClient, expected: list[Stream], first: int, ends_s: float) -> Counter[str]:
    """Streams one request after the other; returns how they ended."""
    ends: Counter[str] = Counter()
    place = first
    while time.monotonic() < ends_s:
        same = expected[place % len(expected)]
        stream = await follow(http, same.body)
        if stream.error is not None:
            ends[stream.error] += 1
            if stream.error.startswith("503"):
                await asyncio.sleep(1.0)  # as its Retry-After says, about
        elif difference := _difference(stream, same):
            ends[difference] += 1
        else:
            ends["whole and the same"] += 1
        place += 1
    return ends


def _difference(stream: Stream, same: Stream) -> str:
    """Empty when there is none; what was cached of a prompt may differ, for it comes again and again."""
    if not stream.is_done:
        return "not whole"
    if stream.text != same.text:
        return "another text"
    ours, theirs = stream.usage or {}, same.usage or {}
    is_equal = all(ours.get(name) == theirs.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return "" if is_equal else "another usage"


async def run(shoal: ShoalProcess, expected: list[Stream], seconds: float, seed: int) -> tuple[Counter[str], Strikes]:
    strikes = Strikes(shoal, seed)
    limits = httpx.Limits(max_connections=CLIENTS)
    ends_s = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=shoal.url, timeout=150, limits=limits) as http:
        striking = asyncio.create_task(strikes.run(seconds))
        ends = await asyncio.gather(*(client(http, expected, number, ends_s) for number in range(CLIENTS)))
        await striking
    return sum(ends, Counter()), strikes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as undisturbed:
        expected = run_streams(undisturbed, bodies(CLIENTS, MAX_TOKENS))
    with running_shoal(SIM, "--engines", str(ENGINES), "--drain-timeout-s", "1") as shoal:
        ends, strikes = asyncio.run(run(shoal, expected, arguments.seconds, arguments.seed))
        shoal.wait_for(lambda: shoal.engines_up() == ENGINES, 60, "an engine core does not come back")
        assert_back_and_idle(shoal, ENGINES)
        print(f"strikes: {dict(strikes.counts)}; resumed: {resumed(shoal):.0f}")
        print(f"streams: {dict(ends)}")
    allowed = ("whole and the same", "503", "request cmpl-")
    noticed = [end for end in ends if not end.startswith(allowed)]
    assert not noticed, noticed


if __name__ == "__main__":
    main()
