"""Random strikes against a real cluster of simulated engine cores under load, for as long as one likes.

Engine cores, the coordinator and API servers are killed, drained and frozen, one strike a second on whatever is alive.
64 callers stream all along. Each stream must be whole and have the tokens of an undisturbed one, and in the end nothing
may be left over. What a caller may see instead is named here, and nothing else is let pass:

- Its connection is cut: its API server was killed while it waited or read. It sends the same request again.
- 503 with Retry-After, before the first token: by the coordinator's published word no engine core took requests at
  some moment of its wait (those that die often are started later and later); or it waited for a coordinator, or an
  API server's knowledge of the cluster, for all of the admission timeout.

    python tests/chaos/random_chaos.py --seconds 600 --seed 1        (PYTHONPATH: tests/cluster)
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
import psutil
from chaos_cluster import SIM, assert_back_and_idle, resumed
from chaos_streams import Stream, bodies, follow, run_streams, tokens_of
from footprint import Footprint, footprint
from published_state import PublishedState, Span
from random_strikes import Strikes
from shoal_process import ShoalProcess, running_shoal

CLIENTS = 64
ENGINES = 4
API_SERVERS = 2
MAX_TOKENS = 100
ADMISSION_TIMEOUT_S = 30.0
"""The default."""
HANGS_AFTER_S = 150.0
BACK_AFTER_S = 90.0
"""Longest back-off of the supervisor, a start on a busy machine, and room."""
WHOLE, CUT, REFUSED = "whole and the same", "cut", "503"


class Ends:
    """What became of all requests, with those whose excuse is still to be looked at."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cut: list[Span] = []
        self.refused: list[tuple[Span, str]] = []

    def add(self, stream: Stream, same: Stream, span: Span) -> str:
        """Notes how a request ended, and returns it."""
        end = _end(stream, same)
        self.counts[end] += 1
        if end == CUT:
            self.cut.append(span)
        elif end == REFUSED:
            self.refused.append((span, stream.error or ""))
        return end

    def check(self, api_server_kills: Iterable[Span], without_engine_core: Iterable[Span]) -> None:
        """Raises AssertionError when a caller saw what no rule names."""
        unexplained = set(self.counts) - {WHOLE, CUT, REFUSED}
        assert not unexplained, unexplained
        assert self.counts[WHOLE] > 0
        kills, gaps = list(api_server_kills), list(without_engine_core)
        for span in self.cut:
            assert any(span.meets(kill) for kill in kills), f"cut, and no API server was killed: {span}"
        for span, answer in self.refused:
            has_waited = span.end_s - span.begin_s >= ADMISSION_TIMEOUT_S
            assert has_waited or any(span.meets(gap) for gap in gaps), f"{span}, with engine cores up: {answer}"


def _end(stream: Stream, same: Stream) -> str:
    if stream.error is not None:
        if stream.error.startswith(("ReadError", "RemoteProtocolError", "ConnectError")):
            return CUT
        return REFUSED if stream.error.startswith("503") and not stream.text else stream.error
    if not stream.is_done:
        return "ended without [DONE]"
    if stream.text != same.text:
        return "another text"
    return WHOLE if tokens_of(stream.usage) == tokens_of(same.usage) else "another usage"


async def _call(http: httpx.AsyncClient, expected: list[Stream], first: int, ends_s: float, ends: Ends) -> None:
    """Streams one request after the other; one that was cut or refused is sent again."""
    place = first
    while time.monotonic() < ends_s:
        same = expected[place % len(expected)]
        begin_s = time.monotonic()
        stream = await follow(http, same.body)
        end = ends.add(stream, same, Span(begin_s, time.monotonic()))
        if end == REFUSED:
            await asyncio.sleep(1.0)  # as its Retry-After says, about
        elif end != CUT:
            place += 1


async def strike_under_load(
    shoal: ShoalProcess, expected: list[Stream], seconds: float, seed: int
) -> tuple[Ends, Strikes]:
    """Callers and strikes at once; returns when the last stream has ended."""
    strikes, ends = Strikes(shoal, seed), Ends()
    # A kept connection may be closed by a kill before its next request, which is nobody's loss: each has its own.
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    ends_s = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=shoal.url, timeout=HANGS_AFTER_S, limits=limits) as http:
        striking = asyncio.create_task(strikes.run(seconds))
        await asyncio.gather(*(_call(http, expected, number, ends_s, ends) for number in range(CLIENTS)))
        await striking
    return ends, strikes


def run_chaos(seconds: float, seed: int, expected: list[Stream]) -> str:
    """A whole run; returns its figures in words. Raises AssertionError when something was noticed or is left over."""
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as parent:
        run_directory = Path(parent) / "run"
        options = ("--engines", str(ENGINES), "--api-servers", str(API_SERVERS), "--drain-timeout-s", "1")
        with running_shoal(SIM, *options, "--run-dir", str(run_directory)) as shoal:
            run_streams(shoal, [stream.body for stream in expected])  # so that buffers and caches are there
            before = _idle_footprint(shoal, run_directory)
            with PublishedState(run_directory) as published:
                ends, strikes = asyncio.run(strike_under_load(shoal, expected, seconds, seed))
            after = _idle_footprint(shoal, run_directory)
            words = _in_words(shoal, ends, strikes, published, before, after)
            print(words, flush=True)
            ends.check(strikes.api_server_kills, published.without_engine_core)
            after.check_against(before)
            processes = [psutil.Process(shoal.process.pid), *shoal.children()]
        left = [process for process in processes if process.is_running()]
        assert not left, left
        assert not run_directory.exists(), list(run_directory.iterdir())
    return words


def _idle_footprint(shoal: ShoalProcess, run_directory: Path) -> Footprint:
    def is_complete() -> bool:
        return len(shoal.children()) == 1 + ENGINES + API_SERVERS and shoal.engines_up() == ENGINES

    shoal.wait_for(is_complete, BACK_AFTER_S, "a process does not come back")
    assert_back_and_idle(shoal, ENGINES)
    return footprint(shoal, run_directory)


def _in_words(
    shoal: ShoalProcess, ends: Ends, strikes: Strikes, published: PublishedState, before: Footprint, after: Footprint
) -> str:
    down_s = sum(span.end_s - span.begin_s for span in published.without_engine_core)
    lines = [
        f"strikes: {sum(strikes.counts.values())}, {dict(strikes.counts)}",
        f"coordinators: {len(published.coordinators)}; without an engine core for {down_s:.1f} s",
        f"requests: {dict(ends.counts)}; resumed: {resumed(shoal):.0f}",
        f"descriptors: {sum(before.descriptors.values())} before, {sum(after.descriptors.values())} after",
        f"memory: {sum(before.memory_bytes.values()) >> 20} MiB before, {sum(after.memory_bytes.values()) >> 20} after",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as undisturbed:
        expected = run_streams(undisturbed, bodies(CLIENTS, MAX_TOKENS))
    run_chaos(arguments.seconds, arguments.seed, expected)


if __name__ == "__main__":
    main()
