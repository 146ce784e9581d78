"""Measures what clients notice of deaths and of overload, and prints the table of docs/reliability.md.

    python tests/chaos/reliability.py        (PYTHONPATH: tests/cluster, tests/chaos, tests/unit/coordinator)

Simulated engine cores with steps of 20 ms, so that what is measured is the cluster around them.
"""

import asyncio
import statistics
import time
from collections.abc import Callable

import httpx
import msgspec
from chaos_cluster import SIM, STEP_S, member
from chaos_streams import Stream, bodies, run_streams
from overload_load import LONGEST_WAIT_S, OVERLOAD, ROWS, WAITING, memory, overload, percentile, small_cluster
from shoal_process import ShoalProcess, running_shoal
from test_routing_traces import cached, played

STREAMS, MAX_TOKENS = 64, 100
STRIKE_AFTER_S = 1.0
NEW_REQUESTS = 8
FROZEN_TOKENS = 200
"""Longer than it takes to find out."""
MIB = 1024 * 1024


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    what: str
    measured: str
    asked: str


def main() -> None:
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as alone:
        expected = run_streams(alone, bodies(STREAMS, MAX_TOKENS))
        longer = run_streams(alone, bodies(STREAMS, FROZEN_TOKENS))
    rows = [
        _undisturbed(expected),
        _engine_core_killed(expected),
        _engine_core_frozen(longer),
        _coordinator_killed(expected),
        _api_server_killed(longer),
        *_conversations(),
        *_overloaded(),
    ]
    print("| what happens | measured | asked for |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.measured} | {row.asked} |")


def _undisturbed(expected: list[Stream]) -> Row:
    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = _run(shoal, expected, lambda: None)
    return Row(f"nothing: {STREAMS} streams over 4 engine cores", _noticed(streams, expected), "to compare with")


def _engine_core_killed(expected: list[Stream]) -> Row:
    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = _run(shoal, expected, lambda: member(shoal, "engine-core", "engine-0").kill())
        struck_s = time.monotonic()
        shoal.wait_for(lambda: shoal.engines_up() == 4, 60, "it does not come back")
        back = "" if time.monotonic() - struck_s > 1.0 else "; back in service before the last stream ended"
    asked = f"no error, the same tokens, median gap at most {_ms(STEP_S + 1.0)}"
    return Row(f"kill -9 of one of 4 engine cores, {STREAMS} streams", _noticed(streams, expected) + back, asked)


def _engine_core_frozen(expected: list[Stream]) -> Row:
    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = _run(shoal, expected, lambda: member(shoal, "engine-core", "engine-0").suspend())
    asked = "no error, the same tokens, found out within 3 s"
    return Row(f"SIGSTOP of one of 4 engine cores, {STREAMS} streams", _noticed(streams, expected), asked)


def _coordinator_killed(expected: list[Stream]) -> Row:
    answers: list[tuple[int, float]] = []

    def strike() -> None:
        member(shoal, "coordinator").kill()
        for _ in range(NEW_REQUESTS):
            began_s = time.monotonic()
            body = {"model": "sim", "prompt": "new", "max_tokens": 5}
            answer = httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=60)
            answers.append((answer.status_code, time.monotonic() - began_s))

    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = _run(shoal, expected, strike)
    good = sum(status == 200 for status, _ in answers)
    new = f"; new requests: {good} of {len(answers)} answered, the slowest after {max(s for _, s in answers):.1f} s"
    asked = "no stream pauses longer than without; new requests wait and succeed"
    return Row(f"kill -9 of the coordinator, {STREAMS} streams", _noticed(streams, expected) + new, asked)


def _api_server_killed(expected: list[Stream]) -> Row:
    noticed_s: list[float] = []

    def strike() -> None:
        member(shoal, "api-server", "api-0").kill()
        struck_s = time.monotonic()
        shoal.wait_for(lambda: "(index" in _lost_line(shoal), 10, "nobody notices")
        noticed_s.append(time.monotonic() - struck_s)

    with running_shoal(SIM, "--engines", "4") as shoal:
        _run(shoal, expected, strike)
        shoal.wait_for(lambda: shoal.metric("shoal:num_requests_running") == 0, 10, "requests are left over")
    measured = f"its requests aborted after {_ms(noticed_s[0])}; none left over"
    return Row("kill -9 of one of 2 API servers", measured, f"{_ms(0.1)} on a machine that does nothing else")


def _lost_line(shoal: ShoalProcess) -> str:
    return next((line for line in shoal.log.splitlines() if "API server api-0" in line and "lost:" in line), "")


def _conversations() -> list[Row]:
    rows = []
    for what, shared_tokens in (
        ("64 conversations of 8 turns", 0),
        ("the same, all with one prefix of 2,048 tokens", 2_048),
    ):
        alone, four = played(1, shared_tokens, 20.0), played(4, shared_tokens, 20.0)
        computed = [engine.computed_tokens for engine in four.engines]
        measured = (
            f"{cached(four) / cached(alone):.1%} of the cached tokens that one engine core with all the memory has; "
            f"fullest {max(computed) * len(computed) / sum(computed):.2f} times the mean load"
        )
        rows.append(Row(f"{what}, over 4 engine cores", measured, "at least 95 %; at most 1.3"))
    return rows


def _overloaded() -> list[Row]:
    with small_cluster() as shoal:
        asyncio.run(overload(shoal.url))  # what is allocated once, is
        before = memory(shoal)
        run = asyncio.run(overload(shoal.url))
        grown = max(size - before[pid] for pid, size in memory(shoal).items())
    accepted = [each.first_s for each in run.outcomes if each.status == 200]
    refused = [each.first_s for each in run.outcomes if each.status == 429]
    others = len(run.outcomes) - len(accepted) - len(refused)
    bound_s = max(LONGEST_WAIT_S, (WAITING + ROWS) * run.seconds / len(accepted))
    what = f"{OVERLOAD} times overload ({len(run.outcomes)} requests in {run.seconds:.1f} s)"
    measured = f"{len(accepted)} accepted, TTFT p99 {percentile(accepted, 0.99):.2f} s; {others} other answers"
    p99 = f"{len(refused)} refused, p50 {_ms(percentile(refused, 0.5))}, p99 {_ms(percentile(refused, 0.99))}"
    lag = f"; the caller itself up to {_ms(run.lag_s)} late"
    return [
        Row(f"{what}: who is let in", measured, f"TTFT bounded by the limits: {bound_s:.2f} s"),
        Row("who is not", p99 + lag, f"p99 under {_ms(0.05)}"),
        Row("memory of coordinator and API servers", f"grown by {grown / MIB:.1f} MiB at most", "flat"),
    ]


def _run(shoal: ShoalProcess, expected: list[Stream], strike: Callable[[], None]) -> list[Stream]:
    return run_streams(shoal, [stream.body for stream in expected], strike, STRIKE_AFTER_S)


def _noticed(streams: list[Stream], expected: list[Stream]) -> str:
    errors = sum(stream.error is not None for stream in streams)
    same = sum(one.text == other.text for one, other in zip(streams, expected, strict=True))
    gaps = [stream.longest_gap_s for stream in streams]
    longest = f"longest gap of a stream: median {_ms(statistics.median(gaps))}, longest {_ms(max(gaps))}"
    return f"{errors} errors, {same} of {len(streams)} with the same tokens; {longest}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1_000:,.0f} ms"


if __name__ == "__main__":
    main()
