"""Limits on what an HTTP connection may do around its requests: uvicorn with httptools sets none.

- A head must end in time and has a largest size.
- Requests may be pipelined, in bounded number; all that are open or queued hear when the connection is lost. For that,
  reading never stops because of them: at the limit, and at bytes that are no HTTP, the whole requests that came before
  are answered and the connection is closed, which HTTP lets callers expect (RFC 9112, section 9.3.2).
- A caller that does not read what is written is cut off.
- HTTP/1.0 knows no chunks: a streamed answer ends with the connection.

Written against uvicorn 0.34 to 0.54; what of `HttpToolsProtocol` is used here and not public: `cycle`, `pipeline`,
`flow`, `connections`, `server_state`, `transport`, `loop`, `_start_asgi_task` and the parser's callbacks; of its
cycles `response_started`, `response_complete`, `more_body`, `body`, `keep_alive`, `disconnected`, `message_event`,
`waiting_for_100_continue`, `chunked_encoding` and `expected_content_length`.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api_server.errors import ApiError, ErrorKind, encode_error

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; more is answered with 431."""
MAX_UNFINISHED_HEAD_BYTES = 512 * 1024
"""Bytes read while a head is not complete; above MAX_HEAD_BYTES, since one read may bring more than the head."""
HEAD_TIMEOUT_S = 75.0
"""From the opening of a connection, or the first byte of a further request, to the end of the head."""
MAX_QUEUED_REQUESTS = 16
"""Pipelined requests that wait for the answer before theirs."""
MAX_QUEUED_BODY_BYTES = 64 * 1024
"""Bodies of these together."""
STALL_PROGRESS_BYTES = 64 * 1024
"""What a caller must read of a full write buffer within the stall timeout: 1 KiB/s, less than slow streams bring."""
FAREWELL_S = 1.0
"""While the server shuts down, how long an idle connection stays open for a request that may be on its way: who sends
one after the other does so at once, and an error would be all it gets."""
MAX_CONNECTIONS = 8_192
"""Open at once; more are answered with 503 and closed."""


class ConnectionState(ServerState):
    """uvicorn's table of connections, with a way to wait for its emptiness."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()
        """Set whenever the last connection goes."""
        self.is_finishing = False
        """No more connections are accepted; one that just was is to be the shorter."""


class _Stall(NamedTuple):
    """A caller that does not read, or reads too little."""

    num_unread: int
    """Bytes in the write buffer when it began."""
    since_s: float


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Its server state must be a ConnectionState."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_is_open = False
        self._head_bytes = 0
        self._unfinished_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._cycles: list[RequestResponseCycle] = []
        """Requests whose answer is not complete, oldest first: the one being answered and the queue behind it."""
        self._takes_no_more = False
        """What comes is no longer looked at; the connection closes behind the requests there are."""
        self._stall: _Stall | None = None
        self._is_finishing = False
        self._farewell: asyncio.TimerHandle | None = None

    def finish(self) -> None:
        """Closes the connection as soon as its caller can know of it.

        That is after the first response whose head says so. When the present one's head has gone out, or there is none,
        the next request may be on its way already: it has FAREWELL_S to come.
        """
        self._is_finishing = True
        if self.cycle is None or self.cycle.response_complete:
            self._close_if_idle_soon()
        elif not self.cycle.response_started:
            self.cycle.keep_alive = False

    def _close_if_idle_soon(self) -> None:
        if self._farewell is None:
            self._farewell = self.loop.call_later(FAREWELL_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._farewell = None
        if not self._open_cycles() and not self._head_is_open:
            self.transport.close()

    def end(self) -> None:
        """Closes the connection; what is being answered ends as if the caller had left."""
        if self._open_cycles():
            self.transport.abort()
        else:
            self.transport.close()

    def cut_if_stalled(self, now_s: float, timeout_s: float) -> None:
        """To be called once a second: aborts the connection when its caller has not read for so long."""
        num_unread = self.transport.get_write_buffer_size()
        if num_unread == 0:
            self._stall = None
        elif self._stall is None or num_unread <= self._stall.num_unread - STALL_PROGRESS_BYTES:
            self._stall = _Stall(num_unread, now_s)
        elif now_s - self._stall.since_s > timeout_s:
            self.transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, ErrorKind.UNAVAILABLE, "too many connections")
        else:
            self._start_head_timer()
        assert isinstance(self.server_state, ConnectionState)
        if self.server_state.is_finishing:
            self.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._farewell is not None:
            self._farewell.cancel()
        self.pipeline.clear()
        for cycle in self._open_cycles():
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        if not self.connections:
            assert isinstance(self.server_state, ConnectionState)
            self.server_state.emptied.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for writing.

        An end of the caller's data looks the same whether it waits for the answer (`nc -N`) or is gone. What takes no
        time is answered; a generation must not run on for nobody, so there it counts as gone.
        """
        cycles = self._open_cycles()
        if not cycles or any(cycle.scope["method"] == "POST" or cycle.more_body for cycle in cycles):
            return False
        cycles[-1].keep_alive = False
        return True

    def resume_writing(self) -> None:
        self._stall = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._takes_no_more:
            return
        super().data_received(data)
        if not self._head_is_open or self.transport.is_closing():
            return
        self._unfinished_bytes += len(data)
        if self._unfinished_bytes > MAX_UNFINISHED_HEAD_BYTES:
            self._head_bytes = self._unfinished_bytes
            self._fail_message()
        else:
            self._start_head_timer()

    # --- callbacks of the parser; what they raise ends in send_400_response -------------------------------------

    def on_message_begin(self) -> None:
        self._head_is_open = True
        self._head_bytes = 0
        self._unfinished_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        self._stop_head_timer()
        if len(self.pipeline) >= MAX_QUEUED_REQUESTS:
            raise ValueError("too many requests at once")
        self._cycles = self._open_cycles()
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        if self._is_finishing:
            self.cycle.keep_alive = False
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn would not hear that the caller leaves

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.pipeline:
            if sum(len(cycle.body) for cycle, _ in self.pipeline) > MAX_QUEUED_BODY_BYTES:
                raise ValueError("too much at once")
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_finishing and not self.transport.is_closing():
            self._close_if_idle_soon()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._start_head_timer()  # refused before its body has come, which is read for politeness, but not for ever

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser fails, or a callback above."""
        self._fail_message()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.waiting_for_100_continue = False  # RFC 9110, section 10.1.1
            app = _delimited_by_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _open_cycles(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _end_after_whole_requests(self) -> bool:
        """Closes the connection once those are answered that have come whole; false when there are none."""
        whole = [cycle for cycle in self._open_cycles() if not cycle.more_body]
        if not whole:
            return False
        self._takes_no_more = True
        self._stop_head_timer()
        self._cycles = whole
        self.pipeline = deque(entry for entry in self.pipeline if entry[0] in whole)
        whole[-1].keep_alive = False
        return True

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("head too large")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if not self._end_after_whole_requests():
            self.transport.close()

    def _fail_message(self) -> None:
        """What is coming cannot become a request."""
        if self._end_after_whole_requests():
            return
        if any(cycle.response_started for cycle in self._open_cycles()):
            self.transport.close()
        elif self._head_bytes > MAX_HEAD_BYTES:
            text = f"request line and headers have more than {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, ErrorKind.TOO_LARGE, text)
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, ErrorKind.INVALID, "this is not an HTTP request")

    def _refuse(self, status: HTTPStatus, kind: ErrorKind, text: str) -> None:
        body = encode_error(ApiError(kind, text))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()


def _delimited_by_close(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """The application for a caller of HTTP/1.0, whose connections uvicorn closes after each response."""

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        streams = False

        async def send_unchunked(message: ASGISendEvent) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                streams = not any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
                if streams:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and streams:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return run
