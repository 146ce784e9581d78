"""How long a request may take: `X-Request-Timeout`, seconds from its arrival, or the server's default.

A header and not a field of the body: no API has such a field, and proxies can set a header.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.datastructures import Headers

from api_server.errors import ApiError, ErrorKind, invalid
from protocol.messages import wall_clock_s

HEADER = "x-request-timeout"
LONGEST_TIMEOUT_S = 7 * 86_400.0
"""Beyond it a header is taken for a mistake (milliseconds, or a date)."""
MAX_HEADER_CHARS = 32


class Deadline(msgspec.Struct, frozen=True):
    """When a request must have ended."""

    timeout_s: float | None
    """From `arrival_s`; None for no deadline."""
    arrival_s: float
    """Clock of the event loop."""
    arrival_wall_s: float

    @property
    def wall_s(self) -> float:
        """Wall clock, which other processes share; 0 for none."""
        return 0.0 if self.timeout_s is None else self.arrival_wall_s + self.timeout_s

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancels the block at the deadline and raises ApiError instead."""
        try:
            async with asyncio.timeout_at(None if self.timeout_s is None else self.arrival_s + self.timeout_s):
                yield
        except TimeoutError as error:
            raise out_of_time() from error


def out_of_time() -> ApiError:
    """The answer to a request that got nothing before its deadline."""
    return ApiError(ErrorKind.TIMED_OUT, "the request's time was up before anything was generated")


def read_deadline(headers: Headers, default_timeout_s: float | None) -> Deadline:
    """The deadline of a request that arrives now. Raises ApiError for a header that is no number of seconds."""
    text = headers.get(HEADER)
    timeout_s = default_timeout_s if text is None else _seconds(text)
    return Deadline(timeout_s, asyncio.get_running_loop().time(), wall_clock_s())


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if len(text) <= MAX_HEADER_CHARS and text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise invalid(f"X-Request-Timeout must be seconds above 0, up to {LONGEST_TIMEOUT_S:.0f}", "X-Request-Timeout")
    return seconds
