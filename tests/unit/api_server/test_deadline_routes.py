"""Deadlines as callers see them: the header, the default, and the ways in which a request runs out of time."""

import asyncio
from collections.abc import Sequence

import pytest
from http_fakes import Script, Server, Step, events, ids, tiny_model

from api_server.generation_backend import Rejected, TokenDelta
from api_server.served_model import ServedModel
from protocol.messages import FinishReason, RejectReason, wall_clock_s
from protocol.sampling import SamplingParams


def cut_short(*texts: str) -> Script:
    """Generation i gets the tokens of texts[i], then its deadline passes."""

    def script(number: int, prompt_ids: Sequence[int], sampling: SamplingParams) -> list[Step]:
        return [TokenDelta(ids(texts[number])), TokenDelta([], FinishReason.TIMEOUT)]

    return script


async def test_header_and_default_say_when_a_request_must_have_ended() -> None:
    for server, headers, seconds in (
        (Server(), {}, None),
        (Server(), {"X-Request-Timeout": "2.5"}, 2.5),
        (Server(request_timeout_s=40.0), {}, 40.0),
        (Server(request_timeout_s=40.0), {"X-Request-Timeout": "90"}, 90.0),
    ):
        before_s = wall_clock_s()
        answer = await server.client.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
        assert answer.status_code == 200
        (deadline_s,) = server.backend.deadlines_s
        if seconds is None:
            assert deadline_s == 0
        else:
            assert before_s + seconds <= deadline_s <= wall_clock_s() + seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "", "1e9", "1" * 40, "1,5"])
async def test_a_header_that_is_no_number_of_seconds_is_named(text: str) -> None:
    answer = await Server().client.post("/v1/completions", json={"prompt": "hi"}, headers={"X-Request-Timeout": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout"


async def test_what_was_generated_by_then_is_the_answer() -> None:
    answer = (await Server(cut_short("hello")).complete()).json()
    assert answer["choices"][0]["text"] == "hello"
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("length", "timeout")
    assert answer["usage"]["completion_tokens"] == len(ids("hello"))


async def test_one_choice_of_several_may_have_nothing() -> None:
    answer = (await Server(cut_short("hello", "", "fox")).complete(n=3)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["hello", "", "fox"]
    assert {choice["stop_reason"] for choice in answer["choices"]} == {"timeout"}


async def test_a_stream_ends_in_order() -> None:
    answer = events(await Server(cut_short("hello")).chat(stream=True, stream_options={"include_usage": True}))
    assert answer[-1] == "[DONE]"
    finishes = [event["choices"][0]["finish_reason"] for event in answer[:-2] if event["choices"]]
    assert finishes[-1] == "length" and answer[-2]["usage"]["completion_tokens"] == len(ids("hello"))


async def test_with_nothing_generated_it_is_a_504_that_clients_do_not_repeat() -> None:
    answer = await Server(cut_short("", "")).complete(n=2)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
async def test_not_accepted_in_time_is_a_504_with_or_without_a_stream(stream: bool) -> None:
    server = Server()
    server.backend.rejections[0] = Rejected(RejectReason.TIMED_OUT, "too late", 0.0)
    answer = await server.complete(stream=stream)
    assert answer.status_code == 504 and answer.json()["error"]["message"] == "too late"


async def test_waiting_for_a_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    async def never(name: str | None) -> ServedModel:
        await asyncio.Event().wait()
        return tiny_model()

    monkeypatch.setattr(server.backend, "model", never)
    answer = await server.client.post("/v1/completions", json={"prompt": "hi"}, headers={"X-Request-Timeout": "0.02"})
    assert answer.status_code == 504
    assert not server.backend.submissions
