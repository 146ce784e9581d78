"""Work for a caller who may hang up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class CallerGone(Exception):
    """The caller closed the connection; there is nobody to answer."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the connection closes (then CallerGone is raised).

    The request body must have been read. On return `work` has ended in every case, its clean-up included.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise CallerGone
        return worker.result()
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
