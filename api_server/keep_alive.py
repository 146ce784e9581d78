"""Comments in a stream of events while nothing else comes: balancers and browsers cut connections that are silent.

A comment line is no event (WHATWG HTML, "Server-sent events"); clients pass over it.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from api_server.sse import EventStream

COMMENT = b": keep-alive\n\n"
T = TypeVar("T")


class KeepAlive:
    """Owner of one stream's timer, which runs only while the stream waits."""

    def __init__(self, stream: EventStream, interval_s: float) -> None:
        """A comment goes out each time that nothing has come for `interval_s`; never for 0."""
        self._stream = stream
        self._interval_s = interval_s

    async def during(self, wait: Awaitable[T]) -> T:
        """The result of `wait`. On return no comment is being written any more."""
        if not self._interval_s:
            return await wait
        comments = _Comments(self._stream, self._interval_s)
        try:
            return await wait
        finally:
            await comments.stop()


class _Comments:
    def __init__(self, stream: EventStream, interval_s: float) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:  # the timer of a stream that is silent already
            await self._stream.write(COMMENT)
            await asyncio.sleep(self._interval_s)

    async def stop(self) -> None:
        """Waits for the end of the task, if the timer has started one."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.result()
