"""Sends requests over HTTP and times what comes back.

aiohttp on uvloop, chosen by measurement: reading 256 streams of 25 events a second costs 24 to 27 microseconds of CPU
time an event (a sixth of a core; 47 to 53 on asyncio's own loop) against 78 to 80 with httpx (119 to 131), whose p99 of
the same 40 ms gaps came out as 49 to 150 ms (AMD EPYC Zen 4, Python 3.11, aiohttp 3.14.5, httpx 0.28.1, uvloop 0.23.0).
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

import aiohttp
import msgspec

from benchmarks.answer import Answer, AnswerError, Failure, FailureKind, StreamedAnswer, WholeAnswer
from benchmarks.record import RequestRecord

Clock = Callable[[], float]

_KEY_REFUSED = (401, 403)
SETUP_TIMEOUT_S = 30.0
"""For the list of models."""


class EndpointError(Exception):
    """The server cannot be measured: it is not there, or it does not answer a plain request."""


class _ModelEntry(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_ModelEntry]


class EndpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to talk to a server."""

    url: str
    """With or without `/v1`."""
    api: Literal["chat", "completions"]
    stream: bool
    keep_alive: bool
    timeout_s: float
    api_key: str | None
    api_key_env: str
    """Environment variable that the key comes from, to be named when the server wants one."""


class Endpoint:
    """One server's connections; an async context manager. One per event loop."""

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        base = options.url.rstrip("/")
        base = base if base.endswith("/v1") else base + "/v1"
        self._models_url = base + "/models"
        self._url = base + ("/chat/completions" if options.api == "chat" else "/completions")
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if options.api_key:
            headers["Authorization"] = f"Bearer {options.api_key}"
        self._session = aiohttp.ClientSession(
            # No limit here: how many requests are in flight is the load pattern's business.
            connector=aiohttp.TCPConnector(limit=0, force_close=not options.keep_alive),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # a request's one deadline is set below
            auto_decompress=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def first_model(self) -> str:
        """Id of the first model that the server lists. Raises EndpointError."""
        try:
            async with asyncio.timeout(SETUP_TIMEOUT_S), self._session.get(self._models_url) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EndpointError(f"{self._models_url}: {_reason(error)}") from error
        if response.status in _KEY_REFUSED:
            raise EndpointError(f"{self._models_url}: status {response.status}: {self._key_advice()}")
        try:
            models = msgspec.json.decode(body, type=_ModelList).data
        except msgspec.MsgspecError as error:
            raise EndpointError(
                f"{self._models_url}: status {response.status} and no list of models ({error}): name one with --model"
            ) from error
        if not models:
            raise EndpointError(f"{self._models_url} lists no model")
        return models[0].id

    async def count_prompt_tokens(self, body: bytes) -> int | None:
        """Prompt tokens of a request that is not streamed, as the server counts them; None when it does not say.

        Raises EndpointError when the request fails.
        """
        answer = WholeAnswer()
        _, failure = await self._exchange(body, answer, asyncio.get_running_loop().time)
        if failure is not None and failure.status in _KEY_REFUSED:
            raise EndpointError(f"{self._url}: status {failure.status}: {self._key_advice()}")
        if failure is not None:
            raise EndpointError(f"{self._url}: a request to count tokens failed: {failure.label} {failure.detail}")
        return answer.usage.prompt_tokens

    def _key_advice(self) -> str:
        if self._options.api_key:
            return f"the server does not take the API key in ${self._options.api_key_env}"
        return f"the server wants an API key: put it in ${self._options.api_key_env}"

    async def send(self, index: int, body: bytes, scheduled_s: float | None, clock: Clock) -> RequestRecord:
        """Sends one request and reads its answer; never raises for what the server or the network does.

        `clock` gives seconds since the start of the run; `scheduled_s` None stands for now.
        """
        answer: Answer = StreamedAnswer() if self._options.stream else WholeAnswer()
        sent_s = clock()
        ended_s, failure = await self._exchange(body, answer, clock)
        return RequestRecord(
            index=index,
            scheduled_s=sent_s if scheduled_s is None else scheduled_s,
            sent_s=sent_s,
            ended_s=ended_s,
            content_times_s=answer.content_times_s,
            failure=failure,
            has_content=answer.has_content,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            usage_output_tokens=answer.usage.completion_tokens,
        )

    async def _exchange(self, body: bytes, answer: Answer, clock: Clock) -> tuple[float, Failure | None]:
        """When the request ended, and how it failed, if it did."""
        failure = None
        try:
            async with asyncio.timeout(self._options.timeout_s), self._session.post(self._url, data=body) as response:
                await _read(response, answer, clock)
        except AnswerError as error:
            failure = error.failure
        except TimeoutError:
            failure = Failure(FailureKind.TIMEOUT, f"not whole after {self._options.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            failure = Failure(FailureKind.CONNECT, _reason(error))
        except aiohttp.ClientError as error:
            failure = Failure(FailureKind.DISCONNECTED, _reason(error))
        if answer.whole_at_s is not None and (failure is None or failure.kind in _HARMLESS_AFTER_THE_END):
            return answer.whole_at_s, None
        return clock(), failure


_HARMLESS_AFTER_THE_END = frozenset({FailureKind.DISCONNECTED, FailureKind.TIMEOUT})
"""How the server closes the connection once the answer is whole is no part of the answer."""


async def _read(response: aiohttp.ClientResponse, answer: Answer, clock: Clock) -> None:
    """Reads the response into `answer`. Raises AnswerError and what aiohttp raises."""
    if response.status != 200:
        detail = (await response.content.read(200)).decode("utf-8", "replace")
        raise AnswerError(Failure(FailureKind.HTTP, detail, response.status))
    expected = answer.content_type
    if response.content_type != expected:
        raise AnswerError(Failure(FailureKind.MALFORMED, f"{response.content_type} instead of {expected}"))
    async for data in response.content.iter_any():
        answer.feed(data, clock())
    answer.end(clock())


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
