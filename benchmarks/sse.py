"""Server-sent events, incrementally: bytes in, whole events out, however the bytes are cut.

Follows "Interpreting an event stream" of the HTML Living Standard, section 9.2.6. Works on bytes, so that a character
cut in two between reads is never looked at. `id` and `retry` fields matter to reconnecting clients only: skipped.
"""

import msgspec

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A longer event is an error: a server that never ends a line must not fill our memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseError(Exception):
    """The stream is not what the standard allows, or an event is too long."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event."""

    data: bytes
    name: bytes = b"message"


class SseParser:
    """Owns what is left of an unfinished line and an unfinished event."""

    def __init__(self) -> None:
        self._line_parts: list[bytes] = []
        self._data_lines: list[bytes] = []
        self._name = b""
        self._pending_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes. Raises SseError when an event grows past MAX_EVENT_BYTES."""
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":  # the second half of a CRLF that was cut in two
                data = data[1:]
        events: list[SseEvent] = []
        for piece in data.splitlines(keepends=True):
            self._take_piece(piece, events)
        self._after_cr = data[-1:] == b"\r" or (self._after_cr and not data)
        return events

    def _take_piece(self, piece: bytes, events: list[SseEvent]) -> None:
        self._pending_bytes += len(piece)
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise SseError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        if piece[-1:] not in (b"\n", b"\r"):
            self._line_parts.append(piece)
            return
        line = b"".join((*self._line_parts, piece)).rstrip(b"\r\n")
        self._line_parts.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line:
            self._take_line(line)
        else:
            self._dispatch(events)

    def _take_line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data_lines.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data_lines:
            events.append(SseEvent(b"\n".join(self._data_lines), self._name or b"message"))
        self._data_lines.clear()
        self._name = b""
        self._pending_bytes = 0

    def check_invariants(self) -> None:
        """For tests."""
        assert not any(b"\n" in part or b"\r" in part for part in self._line_parts)
        held = sum(map(len, self._line_parts)) + sum(map(len, self._data_lines))
        assert held <= self._pending_bytes <= MAX_EVENT_BYTES
