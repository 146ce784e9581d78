"""Waiting until this API server knows which models the cluster serves.

All API servers of a machine share one listening socket, so that one which has just started is asked before it has
heard anything. "No such model" would be untrue then: the request waits, for a bounded time.
"""

import asyncio
from collections.abc import Callable

from api_server.generation_backend import NoModel


class Knowledge:
    """Lets requests wait for news. Bounded by the connections there may be, each of which waits for one thing."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._news = asyncio.Event()

    def changed(self) -> None:
        """Something was heard or found out: those who wait look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, known: Callable[[], bool]) -> None:
        """Returns once `known` holds. Raises NoModel when that takes too long."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while not known():
                    await self._news.wait()
        except TimeoutError as error:
            raise NoModel("this API server does not know yet which models are served") from error
