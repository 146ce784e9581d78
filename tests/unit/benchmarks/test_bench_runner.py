import asyncio

from benchmarks.record import RequestRecord
from benchmarks.runner import run_load
from benchmarks.schedule import ClosedLoop, LoadPattern, OpenLoop, RunLimits


class FakeServer:
    """Answers every request after `service_s`; time is the event loop's."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self._start_s = asyncio.get_running_loop().time()
        self.in_flight = 0
        self.most_in_flight = 0

    def clock(self) -> float:
        return asyncio.get_running_loop().time() - self._start_s

    async def send(self, index: int, scheduled_s: float | None) -> RequestRecord:
        sent_s = self.clock()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self._service_s)
        self.in_flight -= 1
        scheduled_s = sent_s if scheduled_s is None else scheduled_s
        return RequestRecord(index=index, scheduled_s=scheduled_s, sent_s=sent_s, ended_s=self.clock())


async def run(
    server: FakeServer, pattern: LoadPattern, requests: int | None = None, duration_s: float | None = None
) -> list[RequestRecord]:
    return await run_load(pattern, RunLimits(requests, duration_s), server.send, server.clock, seed=0)


async def test_a_closed_loop_keeps_the_stated_number_in_flight() -> None:
    server = FakeServer(0.01)
    records = await run(server, ClosedLoop(3), requests=10)
    assert [record.index for record in records] == list(range(10))
    assert server.most_in_flight == 3
    assert max(record.ended_s for record in records) >= 0.04


async def test_a_closed_loop_ends_at_its_duration_and_lets_requests_finish() -> None:
    server = FakeServer(0.05)
    records = await run(server, ClosedLoop(2), duration_s=0.12)
    assert [record.index for record in records] == list(range(len(records)))
    assert 4 <= len(records) <= 6
    assert max(record.sent_s for record in records) < 0.12 <= max(record.ended_s for record in records)


async def test_an_open_loop_starts_requests_whatever_the_server_does() -> None:
    server = FakeServer(0.1)
    records = await run(server, OpenLoop(100.0, "constant", 1000), requests=8)
    assert server.most_in_flight == 8
    assert [record.scheduled_s for record in records] == [index / 100 for index in range(8)]
    assert all(record.sent_s >= record.scheduled_s for record in records)


async def test_a_full_open_loop_counts_the_wait_as_latency() -> None:
    server = FakeServer(0.02)
    records = await run(server, OpenLoop(1000.0, "constant", 1), requests=5)
    assert server.most_in_flight == 1
    latencies_s = [record.e2e_s for record in records]
    for index, latency_s in enumerate(latencies_s):
        assert latency_s >= 0.02 * (index + 1) - 0.001 * index - 0.005
    assert all(
        record.ended_s - record.sent_s < latency_s
        for record, latency_s in zip(records[1:], latencies_s[1:], strict=True)
    )


async def test_an_open_loop_ends_at_its_duration() -> None:
    records = await run(FakeServer(0.0), OpenLoop(100.0, "constant", 10), duration_s=0.05)
    assert [record.scheduled_s for record in records] == [0.0, 0.01, 0.02, 0.03, 0.04]


async def test_the_first_limit_ends_a_run() -> None:
    assert len(await run(FakeServer(0.0), OpenLoop(100.0, "constant", 10), requests=2, duration_s=0.05)) == 2
