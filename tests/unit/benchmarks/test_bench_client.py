import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import DONE, Script, ScriptedServer, chunk, event, good_stream, json_answer, usage_of, whole_answer

from benchmarks.client import Endpoint, EndpointError, EndpointOptions
from benchmarks.record import RequestRecord

BODY = b'{"max_tokens": 4}'


def options(url: str, **changes: Any) -> EndpointOptions:
    known: dict[str, Any] = {
        "url": url,
        "api": "chat",
        "stream": True,
        "keep_alive": False,
        "timeout_s": 5.0,
        "api_key": None,
        "api_key_env": "BENCH_API_KEY",
    }
    return EndpointOptions(**(known | changes))


def clock() -> Callable[[], float]:
    start_s = time.perf_counter()
    return lambda: time.perf_counter() - start_s


async def send_one(script: Script, **changes: Any) -> RequestRecord:
    async with ScriptedServer(lambda body: script) as server, Endpoint(options(server.url, **changes)) as endpoint:
        return await endpoint.send(3, BODY, None, clock())


def label(record: RequestRecord) -> str | None:
    return record.failure.label if record.failure else None


async def test_times_of_a_stream_are_the_servers() -> None:
    record = await send_one(good_stream(tokens=4, ttft_s=0.2, itl_s=0.08, usage=usage_of(11, 4, 6)))
    assert record.failure is None
    assert record.ttft_s == pytest.approx(0.2, abs=0.06)
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.2
    assert record.itls_s == pytest.approx([0.08] * 3, abs=0.05)
    assert record.e2e_s == pytest.approx(0.44, abs=0.1)
    assert (record.index, record.prompt_tokens, record.cached_tokens, record.output_tokens) == (3, 11, 6, 4)


async def test_without_usage_events_are_counted() -> None:
    record = await send_one(good_stream(tokens=4))
    assert (record.usage_output_tokens, record.output_tokens) == (None, 4)


async def test_latency_counts_from_the_scheduled_time() -> None:
    async with (
        ScriptedServer(lambda body: good_stream(ttft_s=0.05)) as server,
        Endpoint(options(server.url)) as endpoint,
    ):
        record = await endpoint.send(0, BODY, -1.0, clock())
    assert record.ttft_s is not None
    assert record.ttft_s >= 1.05
    assert record.sent_s < 0.5


async def test_an_answer_that_is_not_streamed_has_e2e_only() -> None:
    record = await send_one(whole_answer(12, 5, after_s=0.1), stream=False)
    assert record.failure is None
    assert record.e2e_s == pytest.approx(0.1, abs=0.06)
    assert (record.ttft_s, record.itls_s, record.output_tokens, record.has_content) == (None, [], 5, True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (json_answer({"error": {"message": "slow down"}}, status=429), "http_429"),
        (json_answer({"choices": []}), "malformed"),
        (Script([(0.0, b"data: nonsense\n\n")]), "malformed"),
        (Script([(0.0, chunk("a")), (0.0, event({"error": {"message": "no"}}))]), "error_event"),
        (Script([(0.0, chunk("a"))]), "no_finish_reason"),
        (Script([(0.0, chunk("a", "stop"))]), "no_done"),
        (Script([(0.0, chunk("a"))], breaks_off=True), "disconnected"),
        (Script([(0.0, chunk("a")), (9.0, chunk("b"))]), "timeout"),
    ],
)
async def test_failures_are_told_apart(script: Script, expected: str) -> None:
    record = await send_one(script, timeout_s=0.3)
    assert label(record) == expected
    assert record.ended_s < 2.0


async def test_the_server_s_words_are_kept_for_a_refusal() -> None:
    record = await send_one(json_answer({"error": {"message": "slow down"}}, status=429))
    assert record.failure is not None
    assert "slow down" in record.failure.detail


async def test_a_connection_that_breaks_after_the_answer_is_no_failure() -> None:
    record = await send_one(Script([(0.0, chunk("a", "stop")), (0.0, DONE)], breaks_off=True))
    assert record.failure is None


async def test_a_server_that_closes_late_does_not_lengthen_the_answer() -> None:
    record = await send_one(Script([(0.0, chunk("a", "stop")), (0.0, DONE), (0.4, b": bye\n\n")]))
    assert record.failure is None
    assert record.e2e_s < 0.3


async def test_a_server_that_is_not_there_is_a_failure_to_connect() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with Endpoint(options(url)) as endpoint:
            assert label(await endpoint.send(0, BODY, None, clock())) == "connect"
            with pytest.raises(EndpointError, match=url):
                await endpoint.first_model()


@pytest.mark.parametrize(("keep_alive", "connections"), [(False, 3), (True, 1)])
async def test_connections_are_new_unless_kept_alive(keep_alive: bool, connections: int) -> None:
    async with ScriptedServer(lambda body: good_stream()) as server:
        async with Endpoint(options(server.url, keep_alive=keep_alive)) as endpoint:
            for index in range(3):
                assert label(await endpoint.send(index, BODY, None, clock())) is None
        assert server.connections == connections


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize(("api", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
async def test_urls_may_end_with_v1(suffix: str, api: str, path: str) -> None:
    async with ScriptedServer(lambda body: good_stream()) as server:
        async with Endpoint(options(server.url + suffix, api=api)) as endpoint:
            await endpoint.send(0, BODY, None, clock())
        assert server.headers[0].startswith(f"POST {path} HTTP/1.1")


async def test_the_api_key_is_sent_as_a_bearer_token() -> None:
    async with ScriptedServer(lambda body: good_stream()) as server:
        async with Endpoint(options(server.url, api_key="secret-key")) as endpoint:
            await endpoint.send(0, BODY, None, clock())
            assert await endpoint.first_model() == "scripted"
        assert all("authorization: bearer secret-key" in head.lower() for head in server.headers)


async def test_compression_is_declined() -> None:
    async with ScriptedServer(lambda body: good_stream()) as server:
        async with Endpoint(options(server.url)) as endpoint:
            await endpoint.send(0, BODY, None, clock())
        assert "accept-encoding: identity\r\n" in server.headers[0].lower()


async def test_a_server_without_models_is_refused() -> None:
    async with (
        ScriptedServer(lambda body: good_stream(), models=()) as server,
        Endpoint(options(server.url)) as endpoint,
    ):
        with pytest.raises(EndpointError, match="no model"):
            await endpoint.first_model()


async def test_a_missing_key_is_named_as_what_is_missing() -> None:
    async with (
        ScriptedServer(lambda body: good_stream(), models_status=401) as server,
        Endpoint(options(server.url)) as endpoint,
    ):
        with pytest.raises(EndpointError, match=r"status 401: the server wants an API key: put it in \$BENCH_API_KEY"):
            await endpoint.first_model()


async def test_prompt_tokens_are_the_servers_count() -> None:
    async with ScriptedServer(lambda body: whole_answer(33)) as server, Endpoint(options(server.url)) as endpoint:
        assert await endpoint.count_prompt_tokens(BODY) == 33


async def test_a_failing_token_count_is_an_error() -> None:
    async with (
        ScriptedServer(lambda body: json_answer({}, status=500)) as server,
        Endpoint(options(server.url)) as endpoint,
    ):
        with pytest.raises(EndpointError, match="http_500"):
            await endpoint.count_prompt_tokens(BODY)


async def test_many_streams_at_once_keep_their_times() -> None:
    async with (
        ScriptedServer(lambda body: good_stream(5, 0.1, 0.1)) as server,
        Endpoint(options(server.url)) as endpoint,
    ):
        now = clock()
        records = await asyncio.gather(*(endpoint.send(index, BODY, None, now) for index in range(64)))
        assert server.most_in_flight == 64
    assert all(record.failure is None and len(record.content_times_s) == 5 for record in records)
