"""The slot where a generation's tokens wait for their reader."""

import asyncio

import pytest

from api_server.client_events import Deliver
from api_server.collector import TokenCollector
from api_server.generation_backend import GenerationFailed, TokenDelta
from protocol.identifiers import RequestId
from protocol.messages import FinishReason

R = RequestId("cmpl-1")


@pytest.fixture
def collector() -> TokenCollector:
    return TokenCollector(R)


async def test_tokens_that_pile_up_are_one_delta(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [1, 2], cached_tokens=3))
    collector.put(Deliver(R, [3]))
    assert collector.num_unread == 3
    assert await collector.get() == TokenDelta([1, 2, 3], cached_tokens=3)
    assert collector.num_unread == 0


async def test_the_end_comes_with_the_tokens_before_it(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [1]))
    collector.put(Deliver(R, [2], FinishReason.STOP, stop_reason=2))
    assert await collector.get() == TokenDelta([1, 2], FinishReason.STOP, 2)


async def test_an_end_without_tokens_is_a_delta(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [], FinishReason.LENGTH))
    assert await collector.get() == TokenDelta([], FinishReason.LENGTH)


async def test_a_reader_waits_for_the_next_tokens(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [1]))
    await collector.get()
    reading = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    assert not reading.done()
    collector.put(Deliver(R, [2]))
    assert (await reading).token_ids == [2]


async def test_a_failure_comes_after_the_tokens_before_it(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [1]))
    collector.fail(GenerationFailed("lost", retryable=True))
    assert (await collector.get()).token_ids == [1]
    for _ in range(2):
        with pytest.raises(GenerationFailed, match="lost"):
            await collector.get()


async def test_deltas_do_not_share_their_tokens(collector: TokenCollector) -> None:
    given = [1]
    collector.put(Deliver(R, given))
    delta = await collector.get()
    collector.put(Deliver(R, [2]))
    assert (given, delta.token_ids) == ([1], [1])


def test_nothing_follows_the_end(collector: TokenCollector) -> None:
    collector.put(Deliver(R, [], FinishReason.STOP))
    with pytest.raises(AssertionError):
        collector.put(Deliver(R, [1]))
    with pytest.raises(AssertionError):
        collector.fail(GenerationFailed("lost", retryable=True))
