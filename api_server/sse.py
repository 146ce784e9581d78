"""Server-sent events (WHATWG HTML, section "Server-sent events") in the form that OpenAI's clients read."""

from starlette.types import Send

DONE = b"data: [DONE]\n\n"
"""Ends a stream that succeeded, and no other."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back otherwise
]


def event(data: bytes) -> bytes:
    """One event; `data` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"


class EventStream:
    """One response of events: its state is whether the status line is out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self) -> None:
        """Sends the status line; from here on errors are events."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def write(self, events: bytes) -> None:
        """Sends what there is in one piece; waits for a reader that lags."""
        if events:
            await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Sends the last events and closes the response."""
        await self._send({"type": "http.response.body", "body": events, "more_body": False})
