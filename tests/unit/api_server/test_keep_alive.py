"""A stream that waits gets comments; one that flows does not."""

import asyncio

import pytest
from starlette.types import Message

from api_server.keep_alive import COMMENT, KeepAlive
from api_server.sse import EventStream


class Sent:
    """An ASGI send that counts comments."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.twice = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.bodies.append(message["body"])
        if len(self.bodies) == 2:
            self.twice.set()


async def answer_after(event: asyncio.Event) -> str:
    await event.wait()
    return "tokens"


async def test_comments_come_until_there_is_something() -> None:
    sent = Sent()
    keep_alive = KeepAlive(EventStream(sent), 0.001)
    assert await asyncio.wait_for(keep_alive.during(answer_after(sent.twice)), 5) == "tokens"
    assert sent.bodies == [COMMENT] * 2
    assert len(asyncio.all_tasks()) == 1, "nothing goes on writing"


@pytest.mark.parametrize("interval_s", [60.0, 0.0])
async def test_what_comes_in_time_needs_none(interval_s: float) -> None:
    sent, ready = Sent(), asyncio.Event()
    ready.set()
    assert await KeepAlive(EventStream(sent), interval_s).during(answer_after(ready)) == "tokens"
    assert sent.bodies == []


async def test_a_failure_ends_the_comments_too() -> None:
    sent = Sent()

    async def fails() -> None:
        await sent.twice.wait()
        raise ValueError("no engine core")

    with pytest.raises(ValueError, match="no engine core"):
        await asyncio.wait_for(KeepAlive(EventStream(sent), 0.001).during(fails()), 5)
    assert len(asyncio.all_tasks()) == 1


async def test_a_comment_that_cannot_be_written_is_given_up_when_tokens_come() -> None:
    started = asyncio.Event()

    async def blocked(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    keep_alive = KeepAlive(EventStream(blocked), 0.001)
    assert await asyncio.wait_for(keep_alive.during(answer_after(started)), 5) == "tokens"
