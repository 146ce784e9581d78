"""A whole measurement: prepares the servers, runs every load on each of them in turns, and makes the report."""

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.body import BodyMaker
from benchmarks.client import Clock, Endpoint, EndpointError, EndpointOptions
from benchmarks.config import ServeBenchConfig
from benchmarks.notes import notes_on
from benchmarks.progress import Progress, Say, told
from benchmarks.record import RequestRecord
from benchmarks.report import LoadResult, Report, compare, load_result
from benchmarks.runner import run_load
from benchmarks.schedule import ClosedLoop, LoadPattern, OpenLoop, RunLimits
from benchmarks.summary import RunSummary, ServiceLevel, summarise
from benchmarks.workload import Calibration, FileWorkload, SyntheticWorkload, Workload, parse_prompts, probe_prompt

DEFAULT_CONCURRENCY = 8
DEFAULT_REQUESTS = 64


class RecordLine(msgspec.Struct, frozen=True):
    """One line of the records file."""

    server: str
    load: LoadPattern
    run: int
    record: RequestRecord


class Measurement(msgspec.Struct, frozen=True):
    """What a session hands back."""

    report: Report
    records: list[RecordLine]


class _Server(NamedTuple):
    """One of the servers to measure, ready to be asked."""

    name: str
    url: str
    model: str
    endpoint: Endpoint
    bodies: BodyMaker


async def measure(config: ServeBenchConfig, say: Say) -> Measurement:
    """Measures as configured. Raises EndpointError, ValueError for bad input files, OSError for unreadable ones."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    async with contextlib.AsyncExitStack() as stack:
        servers = [await _prepare(stack, config, *addressed) for addressed in _addresses(config)]
        calibration = await _calibrate(config, servers[0])
        session = _Session(config, servers, _workload(config, calibration), say)
        results = [result for load in load_patterns(config) for result in await session.run(load)]
    template_tokens = calibration.overhead_tokens if calibration else 0.0
    report = Report(
        shoal_version=version("shoal"),
        started_at=started_at,
        options=config,
        calibration=calibration,
        results=results,
        comparisons=[compare(a, b) for a, b in zip(results[::2], results[1::2], strict=True)] if config.compare else [],
        notes=[note for result in results for note in notes_on(result, config, template_tokens)] + session.notes,
    )
    return Measurement(report, session.records)


def load_patterns(config: ServeBenchConfig) -> Sequence[LoadPattern]:
    """The loads to measure, in order."""
    if config.rate:
        return [OpenLoop(rate, config.arrivals, config.max_in_flight) for rate in config.rate]
    return [ClosedLoop(streams) for streams in config.concurrency or (DEFAULT_CONCURRENCY,)]


def _addresses(config: ServeBenchConfig) -> list[tuple[str, str, str | None]]:
    """Name, URL and, if it was given, model of each server."""
    addresses = [("A", config.url, config.model)]
    if config.compare is not None:
        addresses.append(("B", config.compare, config.compare_model or config.model))
    return addresses


async def _prepare(
    stack: contextlib.AsyncExitStack, config: ServeBenchConfig, name: str, url: str, asked_model: str | None
) -> _Server:
    options = EndpointOptions(
        url=url,
        api=config.api,
        stream=config.stream,
        keep_alive=config.keep_alive,
        timeout_s=config.timeout_s,
        api_key=os.environ.get(config.api_key_env),
        api_key_env=config.api_key_env,
    )
    endpoint = await stack.enter_async_context(Endpoint(options))
    model = asked_model or await endpoint.first_model()
    return _Server(name, url, model, endpoint, BodyMaker(config, model))


async def _calibrate(config: ServeBenchConfig, server: _Server) -> Calibration | None:
    """Tokens per word at the first server; the other gets prompts of as many words."""
    if config.prompts is not None:
        return None
    if not config.calibrate:
        return Calibration()
    chat, shared = config.api == "chat", config.shared_prefix_tokens > 0
    once, twice = [
        await server.endpoint.count_prompt_tokens(
            server.bodies.probe_body(probe_prompt(repeats, chat=chat, shared=shared))
        )
        for repeats in (1, 2)
    ]
    if once is None or twice is None:
        raise EndpointError(f"{server.url} does not say how many tokens a prompt has: use --no-calibrate")
    return Calibration.from_probes(once, twice)


def _workload(config: ServeBenchConfig, calibration: Calibration | None) -> Workload:
    chat = config.api == "chat"
    if calibration is None:
        assert config.prompts is not None
        try:
            return FileWorkload(parse_prompts(Path(config.prompts).read_bytes(), chat=chat))
        except ValueError as error:
            raise ValueError(f"{config.prompts}: {error}") from error
    length = calibration.length(config.prompt_tokens, config.shared_prefix_tokens)
    return SyntheticWorkload(length, chat=chat, seed=config.seed)


class _Session:
    """Owns the records and notes that accumulate over a measurement."""

    def __init__(self, config: ServeBenchConfig, servers: list[_Server], workload: Workload, say: Say) -> None:
        self.records: list[RecordLine] = []
        self.notes: list[str] = []
        self._config = config
        self._servers = servers
        self._workload = workload
        self._say = say
        self._level = ServiceLevel(config.slo_ttft_ms, config.slo_itl_ms, config.slo_e2e_ms)
        unlimited = config.requests is None and config.duration_s is not None
        self._limits = RunLimits(None if unlimited else config.requests or DEFAULT_REQUESTS, config.duration_s)

    async def run(self, load: LoadPattern) -> list[LoadResult]:
        """Warms every server up, then runs the load on each in turns: A B A B."""
        for server in self._servers:
            await self._warm_up(server, load)
        summaries: dict[str, list[RunSummary]] = {server.name: [] for server in self._servers}
        for run in range(self._config.runs):
            for server in self._servers:
                self._say(f"{server.name} {server.url}: {load}, run {run + 1} of {self._config.runs}")
                summaries[server.name].append(await self._measure_run(server, load, run))
        return [load_result(s.name, s.url, s.model, load, summaries[s.name]) for s in self._servers]

    async def _warm_up(self, server: _Server, load: LoadPattern) -> None:
        if self._config.warmup == 0:
            return
        self._say(f"{server.name} {server.url}: {load}, {self._config.warmup} warm-up requests")
        limits = RunLimits(self._config.warmup, None)
        records = await self._run_once(server, load, limits, f"{server.name}:{load}:warm-up", clock())
        failures = [record.failure for record in records if record.failure is not None]
        if failures:
            self.notes.append(f"{server.name}, {load}: {len(failures)} warm-up requests failed ({failures[0].label})")

    async def _measure_run(self, server: _Server, load: LoadPattern, run: int) -> RunSummary:
        cpu_before_s = time.process_time()
        records = await self._run_once(server, load, self._limits, f"{server.name}:{load}:{run}", clock())
        cpu_s = time.process_time() - cpu_before_s
        self.records += [RecordLine(server.name, load, run, record) for record in records]
        return summarise(records, self._level, cpu_s=cpu_s, open_loop=isinstance(load, OpenLoop))

    async def _run_once(
        self, server: _Server, load: LoadPattern, limits: RunLimits, name: str, run_clock: Clock
    ) -> list[RequestRecord]:
        progress = Progress(limits.requests)

        async def send(index: int, scheduled_s: float | None) -> RequestRecord:
            body = server.bodies.body(self._workload.prompt(name, index))
            progress.request_started()
            record = await server.endpoint.send(index, body, scheduled_s, run_clock)
            progress.request_ended(failed=record.failure is not None)
            return record

        async with told(progress, self._say, run_clock):
            return await run_load(load, limits, send, run_clock, self._config.seed)


def clock() -> Clock:
    """A clock that starts now, in seconds."""
    start_s = time.perf_counter()
    return lambda: time.perf_counter() - start_s
