"""Streams that must not notice what dies: started together, compared with what an undisturbed cluster gives.

Simulated engine cores draw a token from prompt, seed and output position alone, so that "undisturbed" can be computed
beforehand, by a cluster of one engine core that nobody kills.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from shoal_process import ShoalProcess


class Stream(msgspec.Struct):
    """What one client saw."""

    body: dict[str, Any]
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    is_done: bool = False
    event_times_s: list[float] = []

    @property
    def longest_gap_s(self) -> float:
        """Between two events with text."""
        pairs = itertools.pairwise(self.event_times_s)
        return max((later - earlier for earlier, later in pairs), default=0.0)


def bodies(count: int, max_tokens: int, model: str = "sim") -> list[dict[str, Any]]:
    """Different prompts, lengths and seeds."""
    return [
        {
            "model": model,
            "prompt": f"stream {number} " + "fish and salt " * (number % 7),
            "max_tokens": max_tokens + number % 5,
            "temperature": 0.0 if number % 2 else 1.0,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for number in range(count)
    ]


async def follow(client: httpx.AsyncClient, body: dict[str, Any]) -> Stream:
    """Reads one stream to its end, whatever that is."""
    stream = Stream(body, event_times_s=[])
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                stream.error = f"{response.status_code}: {(await response.aread()).decode()}"
                return stream
            async for line in response.aiter_lines():
                _take(stream, line)
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {error}"
    return stream


def _take(stream: Stream, line: str) -> None:
    if not line.startswith("data: "):
        return
    assert not stream.is_done, "an event after [DONE]"
    if line == "data: [DONE]":
        stream.is_done = True
        return
    event = msgspec.json.decode(line.removeprefix("data: "))
    if "error" in event:
        stream.error = event["error"]["message"]
        return
    for choice in event["choices"]:
        assert stream.finish_reason is None, "something after the finish reason"
        stream.finish_reason = choice["finish_reason"]
        if choice["text"]:
            stream.text += choice["text"]
            stream.event_times_s.append(time.monotonic())
    stream.usage = event.get("usage") or stream.usage


async def _run(url: str, requests: list[dict[str, Any]], disturb: Callable[[], None], after_s: float) -> list[Stream]:
    limits = httpx.Limits(max_connections=len(requests) + 8)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        streams = [asyncio.create_task(follow(client, body)) for body in requests]
        await asyncio.sleep(after_s)
        await asyncio.to_thread(disturb)
        return await asyncio.gather(*streams)


def nothing() -> None:
    """For an undisturbed run."""


def run_streams(
    shoal: ShoalProcess, requests: list[dict[str, Any]], disturb: Callable[[], None] = nothing, after_s: float = 0.0
) -> list[Stream]:
    """Starts all streams, disturbs the cluster after so many seconds, waits for their ends."""
    return asyncio.run(_run(shoal.url, requests, disturb, after_s))


def tokens_of(usage: dict[str, Any] | None) -> tuple[int, int]:
    """Of prompt and answer; how much of a prompt is found in a cache differs from run to run."""
    assert usage is not None and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def assert_undisturbed(streams: list[Stream], expected: list[Stream]) -> None:
    """Every stream is whole, ended once, and is what it would have been."""
    errors = [stream.error for stream in streams if stream.error is not None]
    assert not errors, f"{len(errors)} of {len(streams)} clients saw an error, the first: {errors[0]}"
    for stream, same in zip(streams, expected, strict=True):
        assert stream.is_done
        assert stream.text == same.text
        assert stream.finish_reason == same.finish_reason == "length"
        assert tokens_of(stream.usage) == tokens_of(same.usage)


def median_longest_gap_s(streams: list[Stream]) -> float:
    """The pause that a client in the middle saw."""
    return statistics.median(stream.longest_gap_s for stream in streams)
