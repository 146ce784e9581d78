"""Callers that send one request after the other, streamed or not, while something happens to the cluster."""

import asyncio
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

TIMEOUT_S = 60.0


class SteadyLoad:
    """So many callers in a thread of their own, from entering the block to leaving it.

    Everything that is not a complete answer is an error: a status, a cut connection, a stream without its end.
    """

    def __init__(self, url: str, callers: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._url = url
        self._callers = callers
        self._body = body
        self._headers = headers or {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.answers = 0
        self.errors: Counter[str] = Counter()
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        await asyncio.gather(*(self._call_again_and_again(number) for number in range(self._callers)))

    async def _call_again_and_again(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S, headers=self._headers) as client:
            count = 0
            while not self._stop.is_set():
                count += 1
                body = {**self._body, "prompt": f"caller {number}, call {count}", "stream": number % 2 == 0}
                started_s = time.monotonic()
                try:
                    fault = await _call(client, body)
                except httpx.HTTPError as error:
                    fault = repr(error)
                self.longest_s = max(self.longest_s, time.monotonic() - started_s)
                if fault is None:
                    self.answers += 1
                else:
                    self.errors[fault] += 1


async def _call(client: httpx.AsyncClient, body: dict[str, Any]) -> str | None:
    """What is wrong with the answer; None when it is whole."""
    answer = await client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text}"
    if not body["stream"]:
        tokens = answer.json()["usage"]["completion_tokens"]
        return None if tokens == body["max_tokens"] else f"{tokens} tokens"
    lines = [line for line in answer.text.splitlines() if line]
    if lines[-1:] != ["data: [DONE]"]:
        return f"a stream that ends with {lines[-1:]}"
    events = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return None if len(text) == body["max_tokens"] else f"{len(text)} characters"
