"""Callers who hang up: whatever the moment, what runs is aborted once and nothing stays behind."""

import asyncio
from typing import Any

import msgspec
import pytest
from http_fakes import FakeBackend, FakeCollector, Server, ids, user

from api_server.generation_backend import AbortCause, Rejected, TokenDelta
from protocol.messages import RejectReason


class Connection:
    """One ASGI request whose caller hangs up when told to."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self._body = msgspec.json.encode({"messages": [user("hi")], **fields})
        self._asked = False
        self.gone = asyncio.Event()
        self.sent: list[Any] = []
        headers = [(b"content-type", b"application/json")]
        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
        self.scope = scope | {"query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http"}
        self.task = asyncio.create_task(self._run(server))

    async def _run(self, server: Server) -> None:
        await server.app(self.scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def until_silent(backend: FakeBackend, count: int) -> None:
    """Waits until `count` generations have played their scripts."""
    await backend.until(lambda: len(backend.collectors) == count)
    for collector in backend.collectors:
        await collector.waiting.wait()


def others() -> set[Any]:
    """The tasks that run beside the test itself."""
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
async def test_all_choices_are_aborted_at_once_when_the_caller_leaves(stream: bool, n: int) -> None:
    # BR-h01
    server = Server(lambda *_: [TokenDelta(ids("hello"))])
    connection = Connection(server, stream=stream, n=n)
    await until_silent(server.backend, n)
    connection.gone.set()
    await connection.task
    assert server.backend.aborts == [(list(range(n)), AbortCause.DISCONNECT)]
    assert others() == set()
    status = 200 if stream else 499
    assert server.metrics.responses == [("/v1/chat/completions", status)]


async def test_a_caller_who_leaves_after_one_choice_has_ended_aborts_the_others() -> None:
    def script(number: int, *_: Any) -> list[Any]:
        return [TokenDelta(ids("hello there" if number == 1 else "one"))]

    server = Server(script)
    connection = Connection(server, n=3, stop=["there"])
    await server.backend.until(lambda: bool(server.backend.aborts))
    connection.gone.set()
    await connection.task
    assert server.backend.aborts == [([1], AbortCause.STOP_STRING), ([0, 2], AbortCause.DISCONNECT)]


async def test_a_caller_who_leaves_before_admission_cancels_the_submission() -> None:
    server = Server()
    cancelled = asyncio.Event()
    entered = asyncio.Event()

    async def submit(*_: Any) -> FakeCollector:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    server.backend.submit = submit  # type: ignore[method-assign]
    connection = Connection(server)
    await entered.wait()
    connection.gone.set()
    await connection.task
    assert cancelled.is_set()
    assert server.backend.aborts == []
    assert others() == set()


async def test_a_rejection_cancels_the_submissions_that_still_wait() -> None:
    server = Server()
    cancelled = []

    async def submit(*_: Any) -> FakeCollector:
        if not cancelled:
            cancelled.append(False)
            raise Rejected(RejectReason.OVERLOADED, "no room", 1)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        raise AssertionError

    server.backend.submit = submit  # type: ignore[method-assign]
    response = await server.chat(n=3)
    assert response.status_code == 429
    assert cancelled == [False, True, True]
    assert others() == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_the_handler_cleans_up_as_a_disconnect(stream: bool) -> None:
    server = Server(lambda *_: [TokenDelta(ids("hello"))])
    connection = Connection(server, stream=stream, n=2)
    await until_silent(server.backend, 2)
    connection.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connection.task
    assert server.backend.aborts == [([0, 1], AbortCause.DISCONNECT)]
    assert others() == set()


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_after_the_end_aborts_nothing(stream: bool) -> None:
    # BR-h08
    server = Server()
    connection = Connection(server, stream=stream)
    await connection.task
    connection.gone.set()
    assert server.backend.aborts == []
    assert not connection.sent[-1].get("more_body", False)
    assert others() == set()


async def test_disconnects_leave_nothing_behind() -> None:
    # BR-h01
    server = Server(lambda *_: [TokenDelta(ids("hello"))])
    for round_number in range(50):
        connection = Connection(server, stream=bool(round_number % 2), n=3)
        for _ in range(round_number):
            await asyncio.sleep(0)
        connection.gone.set()
        await connection.task
    assert others() == set()
    aborted = [number for numbers, _ in server.backend.aborts for number in numbers]
    assert len(aborted) == len(set(aborted))
