"""Limits on what an HTTP connection may do before there is a request: uvicorn with httptools sets none.

Written against uvicorn 0.34 to 0.54; what of `HttpToolsProtocol` is used here and not public: `cycle`,
`connections`, `server_state`, `transport`, `loop` and the parser's callbacks.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from api_server.errors import ApiError, ErrorKind, encode_error

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; more is answered with 431."""
MAX_UNFINISHED_HEAD_BYTES = 512 * 1024
"""Bytes read while a head is not complete; above MAX_HEAD_BYTES, since one read may bring more than the head."""
HEAD_TIMEOUT_S = 75.0
"""From the opening of a connection, or the first byte of a further request, to the end of the head."""
MAX_CONNECTIONS = 8_192
"""Open at once; more are answered with 503 and closed."""


class ConnectionState(ServerState):
    """uvicorn's table of connections, with a way to wait for its emptiness."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()
        """Set whenever the last connection goes."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Its server state must be a ConnectionState."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_is_open = False
        self._head_bytes = 0
        self._unfinished_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def finish_after_response(self) -> None:
        """Closes the connection when the response that is under way is complete; an idle one stays."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, ErrorKind.UNAVAILABLE, "too many connections")
        else:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        if not self.connections:
            assert isinstance(self.server_state, ConnectionState)
            self.server_state.emptied.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._head_is_open or self.transport.is_closing():
            return
        self._unfinished_bytes += len(data)
        if self._unfinished_bytes > MAX_UNFINISHED_HEAD_BYTES:
            self._refuse_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

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
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser fails."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, ErrorKind.INVALID, "this is not an HTTP request")

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("head too large")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_head(self) -> None:
        text = f"request line and headers have more than {MAX_HEAD_BYTES} bytes"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, ErrorKind.TOO_LARGE, text)

    def _refuse(self, status: HTTPStatus, kind: ErrorKind, text: str) -> None:
        body = encode_error(ApiError(kind, text))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
