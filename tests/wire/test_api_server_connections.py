"""The HTTP server over real connections and the loop it runs on in service, without a cluster."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from api_server import http_server
from api_server.http_server import HttpServer

LIMIT_S = 10.0
PIECE = b"x" * 65_536


class EndlessStream:
    """An application that writes until its caller is gone."""

    def __init__(self) -> None:
        self.num_written = 0
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        writing = asyncio.create_task(self._write(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        self.gone.set()

    async def _write(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.num_written += len(PIECE)
            await asyncio.sleep(0)


def on_service_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), LIMIT_S))


async def until_stuck(app: EndlessStream) -> None:
    before = -1
    while app.num_written != before or not before:
        before = app.num_written
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("draining", [False, True])
def test_a_caller_that_never_reads_is_cut_off_and_holds_up_no_drain(
    monkeypatch: pytest.MonkeyPatch, draining: bool
) -> None:
    monkeypatch.setattr(http_server, "STALL_TIMEOUT_S", 60.0 if draining else 0.1)
    monkeypatch.setattr(http_server, "DRAINING_STALL_TIMEOUT_S", 0.1)

    async def test() -> None:
        app = EndlessStream()
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(app)
        await server.start(listener)
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            await asyncio.get_running_loop().sock_connect(caller, listener.getsockname())
            await asyncio.get_running_loop().sock_sendall(caller, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await until_stuck(app)
            await server.second_passed()
            await asyncio.sleep(0.2)
            if draining:
                assert not app.gone.is_set()
                server.stop_listening()
            await server.second_passed()
            await app.gone.wait()
            await server.idle()
        await server.close(1.0)

    on_service_loop(test)


async def answer_late(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"late", "more_body": False})


@pytest.mark.parametrize(("method", "answered"), [(b"GET", True), (b"POST", False)])
def test_a_caller_that_only_ends_its_sending_gets_what_is_no_generation(method: bytes, answered: bool) -> None:
    async def test() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(answer_late)
        await server.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(method + b" / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        writer.write_eof()
        assert (b"late" in await reader.read()) == answered
        writer.close()
        await server.close(1.0)

    on_service_loop(test)


def test_closing_ends_a_stream_that_is_stuck_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        app = EndlessStream()
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(app)
        await server.start(listener)
        _, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until_stuck(app)
        server.stop_listening()
        await server.close(1.0)
        assert app.gone.is_set()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    on_service_loop(test)
    assert not caplog.records
