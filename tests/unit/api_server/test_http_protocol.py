"""What a connection may do before there is a request. No socket: the transport is a fake."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn

from api_server import http_protocol
from api_server.http_protocol import FAREWELL_S, BoundedHttpProtocol, ConnectionState


class FakeTransport:
    """What the protocol does to its connection."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.aborted = False
        self.num_unread = 0
        self.is_reading = True

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

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


async def _until_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


class Connections:
    """Opens connections to an application that answers when it is told to, in two pieces of unknown length."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = ConnectionState()
        options = {"interface": "asgi3", "lifespan": "off", "ws": "none", "log_config": None}
        self.config = uvicorn.Config(self._app, http=BoundedHttpProtocol, **options)
        self.config.load()
        self.timers: list[FakeTimer] = []
        self.requests: list[str] = []
        self.answers = asyncio.Semaphore(0)
        self.left: list[str] = []
        """Paths whose application has heard that its caller left."""
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append(scope["path"])
        answer = asyncio.ensure_future(self.answers.acquire())
        gone = asyncio.ensure_future(_until_disconnect(receive))
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left.append(scope["path"])
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one ", "more_body": True})
            await send({"type": "http.response.body", "body": b"two", "more_body": False})
        answer.cancel()
        gone.cancel()

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


async def test_a_finishing_connection_closes_after_the_response_whose_head_says_so(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(get("/a"))
    protocol.finish()
    connections.answers.release()
    await settle()
    assert b"connection: close" in transport.written and transport.closed


async def test_a_finishing_idle_connection_waits_for_a_request_that_is_on_its_way(connections: Connections) -> None:
    late, late_transport = connections.open()
    idle, idle_transport = connections.open()
    for connection in (late, idle):
        connection.finish()
    farewells = [timer for timer in connections.pending() if timer.delay_s == FAREWELL_S]
    assert len(farewells) == 2
    late.data_received(get("/late"))
    for timer in farewells:
        timer.callback()
    assert idle_transport.closed and not late_transport.closed
    connections.answers.release()
    await settle()
    assert b"connection: close" in late_transport.written and late_transport.closed


async def test_when_the_head_is_out_the_caller_may_send_one_more_request(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(get("/a"))
    await settle()
    protocol.cycle.response_started = True
    protocol.finish()
    protocol.cycle.response_started = False
    connections.answers.release()
    await settle()
    assert b"connection: close" not in transport.written and not transport.closed
    assert [timer for timer in connections.pending() if timer.delay_s == FAREWELL_S]
    protocol.data_received(get("/b"))
    connections.answers.release()
    await settle()
    assert b"connection: close" in transport.written and transport.closed


async def test_a_connection_that_was_accepted_at_the_last_moment_finishes_too(connections: Connections) -> None:
    connections.state.is_finishing = True
    connections.open()
    assert [timer for timer in connections.pending() if timer.delay_s == FAREWELL_S]


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode()


def post(path: str, size: int, version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
    return head.encode() + b"x" * size


async def test_all_pipelined_requests_end_when_the_caller_leaves(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(post("/a", 3) + post("/b", 3) + post("/c", 3))
    await settle()
    assert connections.requests == ["/a"]
    assert transport.is_reading, "or nobody would notice that the caller leaves"
    protocol.connection_lost(None)
    await settle()
    assert connections.requests == ["/a"]
    assert connections.left == ["/a"]
    assert not connections.state.tasks


async def test_a_pipelined_request_that_is_being_answered_ends_when_the_caller_leaves(connections: Connections) -> None:
    protocol, _ = connections.open()
    protocol.data_received(get("/a") + get("/b") + get("/c"))
    connections.answers.release()
    await settle()
    assert connections.requests == ["/a", "/b"]
    protocol.connection_lost(None)
    await settle()
    assert (connections.requests, connections.left) == (["/a", "/b"], ["/b"])


async def test_too_many_pipelined_requests_are_answered_up_to_the_limit(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(b"".join(get(f"/{number}") for number in range(100)))
    protocol.data_received(get("/late"))
    for _ in range(100):
        connections.answers.release()
        await settle()
    assert connections.requests == [f"/{number}" for number in range(1 + http_protocol.MAX_QUEUED_REQUESTS)]
    assert transport.written.count(b"200 OK") == len(connections.requests)
    assert b"400" not in transport.written
    assert transport.closed


async def test_bodies_of_pipelined_requests_are_bounded(connections: Connections) -> None:
    protocol, transport = connections.open()
    half = http_protocol.MAX_QUEUED_BODY_BYTES // 2
    protocol.data_received(post("/a", 3) + post("/b", half) + post("/c", half) + post("/d", 1))
    for _ in range(4):
        connections.answers.release()
        await settle()
    assert connections.requests == ["/a", "/b", "/c"]
    assert transport.closed


async def test_what_is_no_http_behind_a_request_does_not_spoil_its_answer(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(get("/a") + b"\x16\x03\x01 hello\r\n\r\n")
    await settle()
    assert not transport.written
    connections.answers.release()
    await settle()
    assert b"400" not in transport.written
    assert transport.written.endswith(b"0\r\n\r\n")
    assert transport.closed


async def test_the_beginning_of_a_further_request_times_out_without_ending_an_answer(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(get("/a") + HEAD)
    await settle()
    (timer,) = connections.pending()
    timer.callback()
    assert not transport.closed
    connections.answers.release()
    await settle()
    assert transport.closed


async def test_a_body_that_goes_on_after_its_answer_is_read_for_a_while_only(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(post("/a", 1000)[:-500])
    connections.answers.release()
    await settle()
    assert not transport.closed
    protocol.data_received(b"x" * 100)  # uvicorn takes its own timer back here
    (timer,) = connections.pending()
    timer.callback()
    assert transport.closed


async def test_http_1_0_streams_end_with_the_connection(connections: Connections) -> None:
    protocol, transport = connections.open()
    protocol.data_received(post("/a", 3, "1.0"))
    connections.answers.release()
    await settle()
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"one two"
    assert transport.closed


async def test_a_caller_that_does_not_read_is_cut_off(connections: Connections) -> None:
    protocol, transport = connections.open()
    transport.num_unread = 100_000
    protocol.cut_if_stalled(0.0, 60.0)
    protocol.cut_if_stalled(60.0, 60.0)
    assert not transport.aborted
    protocol.cut_if_stalled(60.1, 60.0)
    assert transport.aborted


@pytest.mark.parametrize("left", [0, 100_000 - http_protocol.STALL_PROGRESS_BYTES])
async def test_a_caller_that_reads_slowly_is_not_cut_off(connections: Connections, left: int) -> None:
    protocol, transport = connections.open()
    transport.num_unread = 100_000
    protocol.cut_if_stalled(0.0, 60.0)
    transport.num_unread = left
    protocol.cut_if_stalled(59.0, 60.0)
    transport.num_unread = 100_000
    protocol.cut_if_stalled(100.0, 60.0)
    assert not transport.aborted


async def test_a_write_buffer_that_was_emptied_in_between_counts_as_reading(connections: Connections) -> None:
    protocol, transport = connections.open()
    transport.num_unread = 100_000
    protocol.cut_if_stalled(0.0, 60.0)
    protocol.resume_writing()
    protocol.cut_if_stalled(100.0, 60.0)
    assert not transport.aborted


async def test_the_end_of_a_callers_data_is_the_end_of_its_generations_but_not_of_quick_answers(
    connections: Connections,
) -> None:
    quick, _ = connections.open()
    quick.data_received(get("/health"))
    assert quick.eof_received()
    assert quick.cycle.keep_alive is False
    generating, _ = connections.open()
    generating.data_received(post("/v1/completions", 3))
    assert not generating.eof_received()
    assert not connections.open()[0].eof_received()
