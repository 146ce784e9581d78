"""Requests for structured output over HTTP."""

import httpx
import pytest
from http_fakes import Server, Step, events, ids, says
from tool_models import HARMONY, OPENED, WEATHER, model_with

from api_server.generation_backend import AbortCause, GenerationFailed, TokenDelta
from protocol.grammar import GrammarKind, GrammarSpec

REFUSED = GenerationFailed("guided_regex: not closed", retryable=False, field="guided_regex")
JSON_OBJECT = {"type": "json_object"}


def error_of(response: httpx.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_what_the_engine_core_refuses_is_a_400_before_the_first_byte(stream: bool, n: int) -> None:
    server = Server(lambda *_: [REFUSED])
    for response in (
        await server.chat(guided_regex="[a", stream=stream, n=n),
        await server.complete(guided_regex="[a", stream=stream, n=n),
    ):
        assert error_of(response) == (400, "guided_regex", "guided_regex: not closed")


async def test_later_it_is_an_error_event() -> None:
    steps: list[Step] = [TokenDelta(ids("one")), REFUSED]
    response = await Server(lambda *_: steps).chat(guided_regex="a*", stream=True)
    assert response.status_code == 200
    assert events(response)[-1]["error"]["param"] == "guided_regex"


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_with_a_grammar_is_whole(n: int) -> None:
    server = Server(says("hello there"))
    wanted = await server.chat(stream=True, n=n)
    response = await server.chat(stream=True, n=n, response_format=JSON_OBJECT)

    def texts(answer: httpx.Response) -> list[str]:
        chunks = [chunk["choices"][0] for chunk in events(answer)[:-1]]
        return ["".join(c["delta"].get("content") or "" for c in chunks if c["index"] == i) for i in range(n)]

    assert texts(response) == texts(wanted) == ["hello there"] * n
    assert [grammar is None for grammar in server.backend.grammars] == [True] * n + [False] * n
    assert server.backend.aborts == []


async def test_an_answer_of_one_delta_is_streamed_too() -> None:
    server = Server(says("hello", per_delta=100))
    assert events(await server.complete(stream=True, guided_choice=["hello"]))[-1] == "[DONE]"
    [grammar] = server.backend.grammars
    assert grammar == GrammarSpec(GrammarKind.EBNF, 'root ::= "hello"', "guided_choice")


async def test_the_other_choices_of_a_refused_request_are_aborted() -> None:
    endless: list[Step] = [TokenDelta([5])] * 50
    server = Server(lambda number, *_: [REFUSED] if number == 1 else endless)
    assert (await server.complete(guided_regex="[a", n=2, stream=True)).status_code == 400
    assert any(cause is AbortCause.ERROR for _, cause in server.backend.aborts)


async def test_bad_schemas_never_reach_the_cluster() -> None:
    server = Server()
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    response = await server.chat(
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    )
    field = "response_format.json_schema.schema"
    assert error_of(response) == (400, field, f"{field}.properties.a: the keyword not is not supported")
    assert server.backend.submissions == []


async def test_a_grammar_holds_behind_the_thoughts_that_the_prompt_opens() -> None:
    # BR-d07
    server = Server(model=model_with(OPENED, ("<think>", "</think>")))
    await server.chat(response_format=JSON_OBJECT)
    [grammar] = server.backend.grammars
    assert grammar is not None
    [end] = grammar.starts_after
    assert (await server.backend.model(None)).tokenizer.added_token(end) == "</think>"


async def test_where_a_grammar_cannot_hold_it_is_refused() -> None:
    unmarked = await Server(model=model_with(OPENED)).chat(response_format=JSON_OBJECT)
    assert error_of(unmarked)[:2] == (400, "response_format")
    channels = await Server(model=model_with(HARMONY)).chat(response_format=JSON_OBJECT)
    assert error_of(channels)[:2] == (400, "response_format")
    with_tools = await Server(model=model_with(HARMONY)).chat(response_format=JSON_OBJECT, tools=[WEATHER])
    assert with_tools.status_code == 400
