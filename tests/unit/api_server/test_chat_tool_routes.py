"""POST /v1/chat/completions with tools and thoughts, over a backend that plays scripts."""

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from http_fakes import FakeBackend, Script, Server, Step, events, make_card, user
from tool_models import HARMONY, NOW, OPENED, TOOL_TEMPLATE, WEATHER, model_with

from api_server.generation_backend import AbortCause, TokenDelta
from api_server.parsers.names import ParserNames
from api_server.served_model import ServedModel
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams

OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
CALL_NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")


def says(model: ServedModel, text: str, finish: FinishReason = FinishReason.STOP, per_delta: int = 1) -> Script:
    token_ids = model.tokenizer.encode(text, add_special_tokens=False) + ([2] if finish is FinishReason.STOP else [])

    def script(number: int, prompt_ids: Sequence[int], sampling: SamplingParams) -> list[Step]:
        pieces = [token_ids[i : i + per_delta] for i in range(0, len(token_ids), per_delta)]
        return [TokenDelta(piece, finish if i == len(pieces) - 1 else None) for i, piece in enumerate(pieces)]

    return script


def serve(text: str, template: str = TOOL_TEMPLATE, special: tuple[str, ...] = (), **script: Any) -> Server:
    model = model_with(template, special)
    return Server(says(model, text, **script), model)


def joined(stream: list[Any], index: int = 0) -> dict[str, Any]:
    """Choice 0 of a stream put together as clients do, with a check of OpenAI's rules on the way."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for choice in (c for chunk in stream if chunk != "[DONE]" for c in chunk["choices"] if c["index"] == index):
        assert finish is None, "nothing follows the end"
        finish = choice["finish_reason"]
        delta = choice["delta"]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                assert call["type"] == "function"
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {**message, "finish_reason": finish}


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The answer, which must be the same streamed and whole."""
    choice = (await server.chat(**fields)).json()["choices"][0]
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]
    whole = {"content": message["content"], "reasoning": message.get("reasoning"), "calls": calls}
    streamed = joined(events(await server.chat(stream=True, **fields)))
    assert streamed["content"] == (whole["content"] or "")
    assert streamed["reasoning_content"] == (whole["reasoning"] or "")
    assert streamed["finish_reason"] == choice["finish_reason"]
    assert [(c["name"], c["arguments"]) for c in streamed["tool_calls"]] == [(c["name"], c["arguments"]) for c in calls]
    ids = [c["id"] for c in (*calls, *streamed["tool_calls"])]
    assert len(set(ids)) == len(ids)
    return {**whole, "finish_reason": choice["finish_reason"]}


@pytest.mark.parametrize("per_delta", [1, 4, 1000])
async def test_calls_are_structured_and_end_with_tool_calls(per_delta: int) -> None:
    # BR-c01, BR-c03, BR-c09, BR-c18
    server = serve(f"One moment.\n{OSLO}\n{CALL_NOW}", per_delta=per_delta)
    answer = await both(server, tools=[WEATHER, NOW])
    assert [(call["name"], call["arguments"]) for call in answer["calls"]] == [
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ]
    assert answer["content"] == "One moment."
    assert answer["finish_reason"] == "tool_calls"


async def test_content_is_null_beside_a_call_and_usage_is_whole() -> None:
    server = serve(OSLO)
    body = (await server.chat(tools=[WEATHER])).json()
    assert body["choices"][0]["message"]["content"] is None
    assert body["usage"]["completion_tokens"] == len(model_with(TOOL_TEMPLATE).tokenizer.encode(OSLO, False)) + 1
    *_, usage, _ = events(await server.chat(tools=[WEATHER], stream=True, stream_options={"include_usage": True}))
    assert usage["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]


async def test_a_call_that_the_length_limit_cuts_off_ends_with_length() -> None:
    # BR-c23
    answer = await both(serve(OSLO[:-30], finish=FinishReason.LENGTH), tools=[WEATHER])
    assert (answer["finish_reason"], answer["calls"][0]["name"]) == ("length", "get_weather")
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer["calls"][0]["arguments"])


async def test_text_without_a_call_ends_with_stop() -> None:
    answer = await both(serve("Use the <tool_call> tag {now}."), tools=[WEATHER])
    assert answer == {
        "content": "Use the <tool_call> tag {now}.",
        "reasoning": None,
        "calls": [],
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    "fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": [], "tool_choice": "auto"}]
)
async def test_without_tools_on_offer_nothing_is_parsed(fields: dict[str, Any]) -> None:
    server = serve(OSLO)
    answer = await both(server, **fields)
    assert (answer["content"], answer["finish_reason"]) == (OSLO, "stop")
    assert "get_weather" not in prompt_of(server)


def prompt_of(server: Server) -> str:
    backend: FakeBackend = server.backend
    return next(iter(backend._models.values())).tokenizer.decode(backend.submissions[-1][0])


async def test_tools_and_earlier_calls_reach_the_template() -> None:
    # BR-c15
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    empty = {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}}
    as_object = {"id": "c3", "type": "function", "function": {"name": "now", "arguments": {"x": 1}}}
    server = serve("Cold.")
    messages = [
        user("Weather?"),
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call, empty, as_object]},
        {"role": "tool", "tool_call_id": "c1", "content": "-3"},
    ]
    assert (await server.chat(messages=messages, tools=[WEATHER, NOW])).status_code == 200
    prompt = prompt_of(server)
    assert '{"type": "function", "function": {"name": "get_weather", "description"' in prompt
    assert '{"name": "now", "parameters": {"type": "object", "properties": {}}}' in prompt
    assert "<think>Hm.</think><tool_call>get_weather(city=Oslo;)</tool_call><tool_call>now()</tool_call>" in prompt
    assert "now(x=1;)" in prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_without_parallel_calls_the_first_call_ends_the_choice(stream: bool) -> None:
    # BR-h09
    server = serve(f"Hm.{OSLO}{CALL_NOW} and more")
    response = await server.chat(tools=[WEATHER, NOW], parallel_tool_calls=False, stream=stream)
    if stream:
        answer = joined(events(response))
        assert [call["name"] for call in answer["tool_calls"]] == ["get_weather"]
        assert answer["finish_reason"] == "tool_calls"
    else:
        choice = response.json()["choices"][0]
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]
        assert choice["finish_reason"] == "tool_calls"
    assert server.backend.aborts == [([0], AbortCause.STOP_STRING)]


async def test_n_choices_have_calls_and_ids_of_their_own() -> None:
    # BR-c09
    response = await serve(f"{OSLO}{CALL_NOW}").chat(tools=[WEATHER, NOW], n=3)
    calls = [call for choice in response.json()["choices"] for call in choice["message"]["tool_calls"]]
    assert len({call["id"] for call in calls}) == 6


async def test_mistrals_call_ids_have_nine_letters_or_digits() -> None:
    answer = await both(serve("[TOOL_CALLS]now[ARGS]{}", "{{ tools }}[TOOL_CALLS]", ("[TOOL_CALLS]",)), tools=[NOW])
    [call] = answer["calls"]
    assert call["name"] == "now"
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


@pytest.mark.parametrize(
    ("begun", "thoughts"), [("<think>Hm", "Go on."), ("<think>Hm.</think>Well", None), ("Well", None)]
)
async def test_a_continued_answer_goes_on_where_it_was(begun: str, thoughts: str | None) -> None:
    text = "Go on.</think>Hi" if thoughts else ", hi"
    messages = [user("x"), {"role": "assistant", "content": begun}]
    answer = await both(serve(text, OPENED), messages=messages, continue_final_message=True)
    assert (answer["reasoning"], answer["content"]) == (thoughts, "Hi" if thoughts else ", hi")


async def test_thoughts_that_the_template_opens_are_reasoning() -> None:
    # BR-d01, BR-d02
    answer = await both(serve("Let me see.\n</think>\n\nHello.", OPENED))
    assert (answer["reasoning"], answer["content"]) == ("Let me see.", "Hello.")


async def test_thoughts_alone_leave_the_content_null() -> None:
    # BR-d13
    answer = await both(serve("Let me see", OPENED, finish=FinishReason.LENGTH))
    assert (answer["reasoning"], answer["content"], answer["finish_reason"]) == ("Let me see", None, "length")


async def test_thoughts_can_be_left_out() -> None:
    answer = await both(serve("Hm.</think>Hello.", OPENED), include_reasoning=False)
    assert (answer["reasoning"], answer["content"]) == (None, "Hello.")


@pytest.mark.parametrize("stop", [None, ["a stop string that is forty characters long"], "see", ["</think>", "Hel"]])
async def test_stop_strings_apply_to_content_alone(stop: Any) -> None:
    # BR-d14, BR-d15
    answer = await both(serve("Let me see.</think>\n\nHello.", OPENED), stop=stop)
    assert answer["reasoning"] == "Let me see."
    assert answer["content"] == (None if stop and "Hel" in stop else "Hello.")


async def test_stop_strings_do_not_apply_to_calls() -> None:
    answer = await both(serve(f"Well. {OSLO}"), tools=[WEATHER], stop=["Oslo", " <tool"])
    assert (answer["content"], answer["calls"][0]["arguments"]) == ("Well.", '{"city": "Oslo", "days": 3}')


async def test_thinking_can_be_turned_off_by_the_template() -> None:
    server = serve("Hello.")
    assert (await both(server, chat_template_kwargs={"enable_thinking": False}))["content"] == "Hello."
    assert prompt_of(server).endswith("<think>\n\n</think>\n\n")
    await server.chat(reasoning_effort="none")
    assert prompt_of(server).endswith("<think>\n\n</think>\n\n")


async def test_markers_that_are_special_tokens_reach_the_parser_and_nobody_else() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Oslo"}'
    )
    answer = await both(serve(text, HARMONY, HARMONY_TOKENS), tools=[WEATHER])
    assert (answer["reasoning"], answer["content"]) == ("Hm.", None)
    assert [(call["name"], call["arguments"]) for call in answer["calls"]] == [("get_weather", '{"city": "Oslo"}')]
    assert answer["finish_reason"] == "tool_calls"


async def test_effort_is_a_variable_of_the_template() -> None:
    server = serve("<|channel|>final<|message|>Hi", HARMONY, HARMONY_TOKENS)
    assert (await both(server, reasoning_effort="low"))["content"] == "Hi"
    assert prompt_of(server).endswith("low")


@pytest.mark.parametrize("fields", [{"tools": [WEATHER]}, {"reasoning_effort": "high"}])
async def test_what_the_template_cannot_say_is_refused(fields: dict[str, Any]) -> None:
    response = await Server().chat(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, *fields, "unsupported_parameter")


@pytest.mark.parametrize(("wanted", "status"), [("auto", 400), ("none", 200), ("hermes", 200)])
async def test_calls_that_nobody_could_parse_are_refused_unless_the_operator_says_so(wanted: Any, status: int) -> None:
    card = make_card(chat_template="{{ tools }}{{ messages[0].content }}", max_model_len=2000)
    model = ServedModel(card, "hash", ParserNames(wanted, "auto"))
    response = await Server(says(model, OSLO), model).chat(tools=[WEATHER])
    assert response.status_code == status
    if status == 200:
        message = response.json()["choices"][0]["message"]
        assert (message["content"] == OSLO) == (wanted == "none") == ("tool_calls" not in message)


def a_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=server.client, max_retries=0)


async def test_openais_own_client_reads_the_stream() -> None:
    # BR-c21
    server = serve(f"<think>Hm.</think>One moment.\n{OSLO}\n{CALL_NOW}", per_delta=3)
    tools: Any = [WEATHER, NOW]
    messages: Any = [user("Weather?")]
    async with a_client(server).chat.completions.stream(model="tools", messages=messages, tools=tools) as stream:
        kinds = {event.type async for event in stream}
        final = (await stream.get_final_completion()).choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert (final.finish_reason, final.message.content) == ("tool_calls", "One moment.")
    assert [(c.function.name, json.loads(c.function.arguments)) for c in final.message.tool_calls or []] == [
        ("get_weather", {"city": "Oslo", "days": 3}),
        ("now", {}),
    ]


async def test_openais_own_client_sends_a_call_and_its_result_back() -> None:
    server = serve(OSLO)
    client = a_client(server)
    tools: Any = [WEATHER]
    messages: Any = [user("Weather?")]
    message = (await client.chat.completions.create(model="tools", messages=messages, tools=tools)).choices[0].message
    assert message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "-3"}]
    await client.chat.completions.create(model="tools", messages=messages, tools=tools)
    assert "<tool_call>get_weather(city=Oslo;days=3;)</tool_call>" in prompt_of(server)
    assert prompt_of(server).count("-3") == 1
