"""Request bodies: no longer than allowed, no slower, and not too many large ones together."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_fakes import Server
from starlette.requests import Request

from api_server import uploads
from api_server.errors import ApiError, ErrorKind
from api_server.uploads import SMALL_BODY_BYTES, Uploads

LIMIT = 4 * SMALL_BODY_BYTES


class Caller:
    """Sends a body in pieces, the last of which never comes unless `end` is called."""

    def __init__(self, *pieces: int) -> None:
        self._pieces = list(pieces)
        self._end = asyncio.Event()

    def end(self) -> None:
        self._end.set()

    async def _receive(self) -> Any:
        if self._pieces:
            return {"type": "http.request", "body": bytes(self._pieces.pop(0)), "more_body": True}
        await self._end.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    @property
    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "headers": []}, self._receive)


async def hold(owner: Uploads, caller: Caller, until: asyncio.Event) -> int:
    async with owner.body(caller.request) as body:
        await until.wait()
        return len(body)


async def refusal(owner: Uploads, caller: Caller) -> ApiError:
    with pytest.raises(ApiError) as caught:
        async with owner.body(caller.request):
            pass
    return caught.value


@pytest.fixture
async def owner() -> AsyncIterator[Uploads]:
    owner = Uploads(LIMIT)
    yield owner
    owner.check_invariants()


async def test_a_body_that_does_not_end_is_a_408_that_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BODY_TIMEOUT_S", 0.01)
    server = Server()

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        await asyncio.Event().wait()

    headers = {"content-type": "application/json"}
    response = await asyncio.wait_for(server.client.post("/v1/completions", content=endless(), headers=headers), 5)
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "request_timeout"
    assert response.headers["connection"] == "close"
    server.uploads.check_invariants()


async def test_large_bodies_are_bounded_together_and_small_ones_still_come_through(
    owner: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGEST_BODIES_AT_ONCE", 1)
    stalled = asyncio.create_task(hold(owner, slow := Caller(LIMIT), asyncio.Event()))
    await asyncio.sleep(0)
    error = await refusal(owner, Caller(SMALL_BODY_BYTES, 2 * SMALL_BODY_BYTES))
    assert (error.kind, error.retry_after_s) == (ErrorKind.UNAVAILABLE, 1.0)
    small = Caller(SMALL_BODY_BYTES)
    small.end()
    done = asyncio.Event()
    done.set()
    assert await hold(owner, small, done) == SMALL_BODY_BYTES
    stalled.cancel()
    await asyncio.gather(stalled, return_exceptions=True)
    large = Caller(LIMIT)
    large.end()
    assert await hold(owner, large, done) == LIMIT
    slow.end()


async def test_a_body_counts_until_its_request_is_planned(owner: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGEST_BODIES_AT_ONCE", 1)
    caller, planned = Caller(LIMIT), asyncio.Event()
    caller.end()
    planning = asyncio.create_task(hold(owner, caller, planned))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await refusal(owner, Caller(LIMIT))).kind is ErrorKind.UNAVAILABLE
    planned.set()
    assert await planning == LIMIT


async def test_memory_is_given_back_once_after_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "TRIM_ABOVE_BYTES", SMALL_BODY_BYTES)
    trims: list[bool] = []
    owner = Uploads(LIMIT, lambda: trims.append(True))
    assert (await refusal(owner, Caller(LIMIT, LIMIT))).kind is ErrorKind.TOO_LARGE
    assert not trims
    owner.second_passed()
    owner.second_passed()
    assert trims == [True]
