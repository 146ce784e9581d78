"""A real API server process between a fake coordinator, a fake engine core, and HTTP clients."""

import asyncio
import contextlib
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
import zmq.asyncio
from api_server_fakes import LIMIT_S, FakeCoordinator, FakeEngineCore

from protocol.addresses import CLIENTS, CLUSTER, ipc_address
from protocol.lifeline import LIFELINE_FD, Notice
from protocol.messages import Abort, EngineCoreOutput, EngineCoreRequest, FinishReason, Refused

LAUNCH = """
import sys, msgspec
from api_server.config import ApiServerConfig
from api_server.main import run
from protocol.lifeline import Lifeline
from protocol.logs import set_up_logging
config = msgspec.json.decode(sys.argv[1], type=ApiServerConfig)
set_up_logging(config.name, "info", "text")
sys.exit(run(config, Lifeline.from_environment()))
"""
START_LIMIT_S = 1.5
BODY = {"model": "tiny", "prompt": [0, 1], "max_tokens": 16, "stream": True}


class ApiServer:
    """The process, its lifeline and its log."""

    def __init__(self, directory: Path, context: zmq.asyncio.Context) -> None:
        self.directory = directory
        self.context = context
        self.coordinator: FakeCoordinator | None = None
        self.engine: FakeEngineCore | None = None
        self.log = ""
        self.url = ""
        self.started_s = 0.0
        self._lifeline, self._child_end = socket.socketpair()

    async def start(self, listener: socket.socket | None = None, **options: object) -> None:
        addresses = {
            "clients_address": ipc_address(self.directory, CLIENTS),
            "cluster_address": ipc_address(self.directory, CLUSTER),
            "output_address": ipc_address(self.directory, "outputs"),
        }
        config = msgspec.json.encode({"port": 0, **addresses, **options}).decode()
        fd = self._child_end.fileno()
        inherited = [fd] if listener is None else [fd, listener.fileno()]
        before_s = time.monotonic()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LAUNCH, config),
            env={LIFELINE_FD: str(fd), "PYTHONPATH": ":".join(sys.path)},
            pass_fds=inherited,
            stderr=asyncio.subprocess.PIPE,
        )
        self._child_end.close()
        self._reading = asyncio.create_task(self._read_log())
        self._lifeline.setblocking(False)
        self._notices = asyncio.StreamReader()
        await asyncio.get_running_loop().create_connection(
            lambda: asyncio.StreamReaderProtocol(self._notices), sock=self._lifeline
        )
        assert (await self.notice()).state == "ready"
        self.started_s = time.monotonic() - before_s
        found = re.search(r"listening on (http://\S+)", self.log)
        assert found is not None, self.log
        self.url = found[1]

    async def start_cluster(self) -> None:
        self.coordinator = FakeCoordinator(self.context, self.directory)
        self.engine = FakeEngineCore(self.context, ipc_address(self.directory, "outputs"))
        assert (await self.notice()).state == "serving"
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{self.url}/ready")).status_code == 200

    async def notice(self) -> Notice:
        return msgspec.json.decode(await asyncio.wait_for(self._notices.readline(), LIMIT_S), type=Notice)

    async def ended(self, limit_s: float = LIMIT_S) -> int:
        code = await asyncio.wait_for(self.process.wait(), limit_s)
        await self._reading
        return code

    async def open_stream(self, client: httpx.AsyncClient) -> tuple["asyncio.Task[list[str]]", EngineCoreRequest]:
        assert self.coordinator is not None
        started = asyncio.Event()
        streaming = asyncio.create_task(self._stream(client, started))
        request = await self.coordinator.next(EngineCoreRequest)
        await self.coordinator.accept(request)
        await asyncio.wait_for(started.wait(), LIMIT_S)
        return streaming, request

    async def _stream(self, client: httpx.AsyncClient, started: asyncio.Event) -> list[str]:
        async with client.stream("POST", f"{self.url}/v1/completions", json=BODY, timeout=60) as response:
            assert response.status_code == 200, await response.aread()
            started.set()
            return [line async for line in response.aiter_lines() if line]

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self.coordinator is not None:
            await self.coordinator.close()
        if self.engine is not None:
            self.engine.close()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        context = zmq.asyncio.Context()
        server = ApiServer(Path(directory), context)
        yield server
        await server.close()
        context.term()


async def is_accepting(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        return True
    return False


async def test_it_serves_from_a_port_of_its_own(server: ApiServer) -> None:
    await server.start()
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        await server.start_cluster()
        assert (await client.get("/ready")).status_code == 200
        assert "date" in (await client.get("/health")).headers
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended() == 0
    assert "Traceback" not in server.log


async def test_the_parsers_that_were_asked_for_are_used_and_logged(server: ApiServer) -> None:
    await server.start(tool_call_parser="kimi_k2", reasoning_parser="granite")
    await server.start_cluster()
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended() == 0
    assert "tool call parser kimi_k2, reasoning parser granite" in server.log


async def test_it_starts_soon_stays_small_and_does_nothing_when_idle(server: ApiServer) -> None:
    """Measured on 2 busy cores: 0.9 s to listen, 50 MiB, no CPU tick in 10 s, 2 wake-ups a second (a heartbeat, its
    answer)."""
    await server.start()
    process = psutil.Process(server.process.pid)
    assert sum(process.cpu_times()[:2]) < START_LIMIT_S  # the wall clock's time on a machine with nothing else to do
    assert server.started_s < 3 * START_LIMIT_S
    await server.start_cluster()
    assert process.memory_info().rss < 90 * 1024 * 1024
    await asyncio.sleep(0.5)
    before, before_wakes = process.cpu_times(), process.num_ctx_switches().voluntary
    await asyncio.sleep(3)
    after, after_wakes = process.cpu_times(), process.num_ctx_switches().voluntary
    assert (after.user + after.system) - (before.user + before.system) <= 0.03
    assert after_wakes - before_wakes <= 8


async def test_an_inherited_socket_is_served(server: ApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.start(listener, fd=listener.fileno())
        port = listener.getsockname()[1]
    assert server.url == f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/health")).status_code == 200


async def test_sigterm_lets_open_streams_finish_and_takes_no_new_work(server: ApiServer) -> None:
    await server.start()
    await server.start_cluster()
    assert server.engine is not None and server.coordinator is not None
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
    async with httpx.AsyncClient() as client, httpx.AsyncClient(base_url=server.url) as kept:
        assert (await kept.get("/health")).status_code == 200
        streaming, request = await server.open_stream(client)
        await server.engine.push(EngineCoreOutput(request.request_id, 0, 0, [0]))
        server.process.send_signal(signal.SIGTERM)
        assert (await server.notice()).state == "draining"
        late = asyncio.create_task(kept.post("/v1/completions", json={**BODY, "stream": False}))
        late_request = await server.coordinator.next(EngineCoreRequest)
        await server.coordinator.accept(late_request)
        await server.engine.push(EngineCoreOutput(late_request.request_id, 0, 0, [0], FinishReason.LENGTH))
        answer = await late  # it was on its way over a connection that was open
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert not await is_accepting(server.url)
        assert await asyncio.wait_for(idle_reader.read(), LIMIT_S) == b""
        assert not streaming.done()
        await server.engine.push(EngineCoreOutput(request.request_id, 0, 1, [1], FinishReason.LENGTH))
        assert (await streaming)[-1] == "data: [DONE]"
    idle_writer.close()
    assert await server.ended() == 0
    assert "Traceback" not in server.log


async def test_at_the_deadline_the_rest_is_ended_with_an_error_and_aborted(server: ApiServer) -> None:
    await server.start(drain_timeout_s=0.3)
    await server.start_cluster()
    async with httpx.AsyncClient() as client:
        streaming, _ = await server.open_stream(client)
        server.process.send_signal(signal.SIGTERM)
        lines = await asyncio.wait_for(streaming, LIMIT_S)
    assert "shutting down" in lines[-1] or "shutting down" in lines[-2]
    assert await server.ended() == 0


async def test_a_second_signal_ends_it_at_once_but_not_without_a_word(server: ApiServer) -> None:
    await server.start(drain_timeout_s=60)
    await server.start_cluster()
    async with httpx.AsyncClient() as client:
        streaming, _ = await server.open_stream(client)
        server.process.send_signal(signal.SIGTERM)
        assert (await server.notice()).state == "draining"
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended(5.0) == 3
        assert "shutting down" in (await asyncio.wait_for(streaming, LIMIT_S))[-1]
    assert "Traceback" not in server.log


def http_request(version: str = "1.1", size: int | None = None) -> bytes:
    body = msgspec.json.encode(BODY)
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size or len(body)}\r\n\r\n".encode() + body


async def connect(server: ApiServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def test_pipelined_streams_whose_caller_leaves_end_quietly(server: ApiServer) -> None:
    await server.start()
    await server.start_cluster()
    assert server.coordinator is not None
    assert server.engine is not None
    reader, writer = await connect(server)
    writer.write(http_request() * 5)
    request = await server.coordinator.next(EngineCoreRequest)
    await server.coordinator.accept(request)
    await server.engine.push(EngineCoreOutput(request.request_id, 0, 0, [0]))
    await reader.readuntil(b"data: ")
    writer.close()
    abort = await server.coordinator.next(Abort)
    assert [key.request_id for key in abort.keys] == [request.request_id]
    await server.coordinator.nothing_more()
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended() == 0
    assert "Traceback" not in server.log


async def test_a_stream_over_http_1_0_ends_with_the_connection(server: ApiServer) -> None:
    await server.start()
    await server.start_cluster()
    assert server.coordinator is not None
    assert server.engine is not None
    reader, writer = await connect(server)
    writer.write(http_request("1.0"))
    request = await server.coordinator.next(EngineCoreRequest)
    await server.coordinator.accept(request)
    await server.engine.push(EngineCoreOutput(request.request_id, 0, 0, [0], FinishReason.LENGTH))
    head, _, body = (await asyncio.wait_for(reader.read(), LIMIT_S)).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    writer.close()


async def test_a_refused_process_says_why_and_exits_with_2(server: ApiServer) -> None:
    await server.start()
    server.coordinator = FakeCoordinator(server.context, server.directory)
    server.coordinator.answers_hello = False
    async with asyncio.timeout(LIMIT_S):
        while not server.coordinator.hellos:  # noqa: ASYNC110  (the far end of a socket has no event of ours)
            await asyncio.sleep(0.005)
    await server.coordinator.send(Refused("version 1, not 2"))
    assert await server.ended() == 2
    assert "version 1, not 2" in server.log
    assert "Traceback" not in server.log
