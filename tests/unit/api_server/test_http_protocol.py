"""What a connection may do before there is a request. No socket: the transport is a fake."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn

from api_server import http_protocol
from api_server.http_protocol import BoundedHttpProtocol, ConnectionState


class FakeTransport:
    """What the protocol does to its connection."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        return None


class FakeTimer:
    """A timer that only a test fires."""

    def __init__(self, delay_s: float, callback: Callable[[], Any]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Connections:
    """Opens connections to an application that never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = ConnectionState()
        options = {"interface": "asgi3", "lifespan": "off", "ws": "none", "log_config": None}
        self.config = uvicorn.Config(self._app, http=BoundedHttpProtocol, **options)
        self.config.load()
        self.timers: list[FakeTimer] = []
        self.requests: list[str] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append(scope["path"])
        await asyncio.Event().wait()

    def _call_later(self, delay_s: float, callback: Callable[[], Any]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, callback))
        return self.timers[-1]

    def open(self) -> tuple[BoundedHttpProtocol, FakeTransport]:
        protocol = BoundedHttpProtocol(config=self.config, server_state=self.state, app_state={})
        transport = FakeTransport()
        protocol.connection_made(transport)  # type: ignore[arg-type]
        return protocol, transport

    async def close(self) -> None:
        for task in list(self.state.tasks):
            task.cancel()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)

    def pending(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.cancelled]


@pytest.fixture
async def connections(monkeypatch: pytest.MonkeyPatch) -> Any:
    connections = Connections(monkeypatch)
    yield connections
    await connections.close()


HEAD = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"


async def test_a_request_reaches_the_application_and_stops_the_timer(connections: Connections) -> None:
    protocol, transport = connections.open()
    assert len(connections.pending()) == 1
    protocol.data_received(HEAD + b"\r\n")
    await asyncio.sleep(0)
    assert connections.requests == ["/v1/models"]
    assert not transport.written
    assert connections.pending() == []


async def test_a_head_that_does_not_end_in_time_closes_the_connection(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(HEAD)
    (timer,) = connections.pending()
    assert timer.delay_s == http_protocol.HEAD_TIMEOUT_S
    protocol.data_received(b"x-more: y\r\n")
    assert connections.pending() == [timer]
    timer.callback()
    assert transport.closed


async def test_headers_above_the_limit_are_a_431(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(HEAD + b"x-long: " + b"y" * http_protocol.MAX_HEAD_BYTES + b"\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert b'"error"' in transport.written
    assert transport.closed
    assert connections.requests == []


async def test_an_endless_header_is_a_431(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(HEAD + b"x-long: ")
    pieces = 0
    while not transport.closed:
        protocol.data_received(b"y" * 32_768)
        pieces += 1
        assert pieces <= http_protocol.MAX_UNFINISHED_HEAD_BYTES // 32_768 + 1
    assert transport.written.startswith(b"HTTP/1.1 431 ")


async def test_a_long_body_is_no_long_head(connections: Connections) -> None:
    protocol, transport = connections.open()
    size = http_protocol.MAX_UNFINISHED_HEAD_BYTES * 2
    protocol.flow.pause_reading = lambda: None  # type: ignore[method-assign]
    protocol.data_received(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
    for _ in range(size // 65_536):
        protocol.data_received(b"z" * 65_536)
    assert not transport.written
    assert not transport.closed


async def test_what_is_no_http_is_a_400_in_our_format(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(b"\x16\x03\x01 hello\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_request_error" in transport.written
    assert transport.closed


async def test_one_connection_too_many_is_answered_and_closed(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 2)
    first, second, third = (connections.open() for _ in range(3))
    assert third[1].written.startswith(b"HTTP/1.1 503 ")
    assert (first[1].closed, second[1].closed, third[1].closed) == (False, False, True)
    third[0].connection_lost(None)
    first[0].connection_lost(None)
    assert not connections.open()[1].closed


async def test_the_last_connection_to_go_is_noticed(connections: Connections) -> None:
    first, second = connections.open()[0], connections.open()[0]
    first.connection_lost(None)
    assert not connections.state.emptied.is_set()
    second.connection_lost(None)
    assert connections.state.emptied.is_set()
    assert connections.pending() == []


async def test_a_connection_in_use_closes_after_its_response_when_told_so(connections: Connections) -> None:
    busy, _ = connections.open()
    idle, _ = connections.open()
    busy.data_received(HEAD + b"\r\n")
    for connection in (busy, idle):
        connection.finish_after_response()
    assert busy.cycle.keep_alive is False
    assert idle.cycle is None
