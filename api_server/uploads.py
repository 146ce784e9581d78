"""Request bodies on their way in: how large, how long, and how many together."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request

from api_server.errors import RETRY_AFTER_S, ApiError, ErrorKind
from api_server.heap import return_free_memory

BODY_TIMEOUT_S = 120.0
"""From the head to the end of the body: the largest body of 16 MiB at 1.2 Mbit/s."""
SMALL_BODY_BYTES = 64 * 1024
"""What a body does not count for below, so that large uploads, or such as never end, cannot shut out ordinary
requests. With the most connections there may be, 512 MiB."""
LARGEST_BODIES_AT_ONCE = 16
"""Bodies held together, in units of the largest one: 256 MiB by default."""
TRIM_ABOVE_BYTES = 1024 * 1024
"""A body above this leaves memory behind that is worth the 8 ms of giving it back."""


class Uploads:
    """Owns the count of the bytes that bodies hold until they are requests."""

    def __init__(self, max_body_bytes: int, trim: Callable[[], None] = return_free_memory) -> None:
        self._max_body_bytes = max_body_bytes
        self._trim = trim
        self._held_bytes = 0
        self._wants_trim = False

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body, which counts as held until the block is left.

        Raises ApiError; starlette.requests.ClientDisconnect when the caller leaves.
        """
        body = bytearray()
        try:
            await self._read(request, body)
            yield bytes(body)
        finally:
            self._held_bytes -= _counted(len(body))
            self._wants_trim |= len(body) > TRIM_ABOVE_BYTES

    def second_passed(self) -> None:
        """To be called once a second: gives memory back after large bodies."""
        if self._wants_trim and not self._held_bytes:
            self._wants_trim = False
            self._trim()

    async def _read(self, request: Request, body: bytearray) -> None:
        too_large = ApiError(ErrorKind.TOO_LARGE, f"the request body is larger than {self._max_body_bytes} bytes")
        announced = request.headers.get("content-length", "0")
        # Refused before a byte of it is read; what lies about its length or is chunked is counted below.
        if announced.isascii() and announced.isdigit() and _exceeds(announced, self._max_body_bytes):
            raise too_large
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._max_body_bytes:
                        raise too_large
                    self._take(chunk, body)
        except TimeoutError as error:
            text = f"the request body did not end within {BODY_TIMEOUT_S:.0f} seconds"
            raise ApiError(ErrorKind.TOO_SLOW, text) from error

    def _take(self, chunk: bytes, body: bytearray) -> None:
        more = _counted(len(body) + len(chunk)) - _counted(len(body))
        if self._held_bytes + more > LARGEST_BODIES_AT_ONCE * self._max_body_bytes:
            text = "too many large request bodies are on their way"
            raise ApiError(ErrorKind.UNAVAILABLE, text, retry_after_s=RETRY_AFTER_S)
        self._held_bytes += more
        body += chunk

    def check_invariants(self) -> None:
        """For tests, with no body under way."""
        assert self._held_bytes == 0


def _counted(num_bytes: int) -> int:
    return max(0, num_bytes - SMALL_BODY_BYTES)


def _exceeds(digits: str, limit: int) -> bool:
    return len(digits) > 18 or int(digits) > limit  # very long ones would only be slow to convert
