"""POST /v1/chat/completions over a backend that plays scripts: answers, streams, errors."""

from collections.abc import Sequence
from typing import Any

import pytest
from http_fakes import CHATML, Server, Step, events, ids, make_card, says, tiny_model, user

from api_server.generation_backend import AbortCause, GenerationFailed, Rejected, TokenDelta
from api_server.served_model import ServedModel
from protocol.messages import FinishReason, RejectReason
from protocol.sampling import SamplingParams

USAGE_KEYS = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}


def contents(stream: list[Any]) -> list[str]:
    """The text deltas of choice 0."""
    chunks = [chunk for chunk in stream if chunk != "[DONE]" and chunk.get("choices")]
    return [
        c["delta"]["content"]
        for chunk in chunks
        for c in chunk["choices"]
        if c["index"] == 0 and c["delta"].get("content")
    ]


async def test_a_whole_answer() -> None:
    server = Server(says("hello there"))
    response = await server.chat(model="tiny")
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello there", "refusal": None},
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": None,
        }
    ]
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert server.backend.submissions[0][0] == tiny_model().tokenizer.encode(prompt, False)
    tokens = len(ids("hello there")) + 1
    assert body["usage"] == {
        "prompt_tokens": len(ids(prompt)),
        "completion_tokens": tokens,
        "total_tokens": len(ids(prompt)) + tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert server.backend.aborts == []


async def test_a_stream_has_a_role_texts_one_end_and_done() -> None:
    # BR-a11, BR-a12, BR-a13, BR-l01
    response = await Server(says("hello there")).chat(stream=True)
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}
    assert all(choice["finish_reason"] is None and choice["delta"]["content"] for choice in choices[1:-1])
    assert "".join(contents(chunks)) == "hello there"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_no_usage_chunk_without_asking(options: Any) -> None:
    # BR-a14
    *chunks, _ = events(await Server().chat(stream=True, stream_options=options))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_one_usage_chunk_before_done_when_asked() -> None:
    # BR-a14
    *chunks, usage, done = events(await Server().chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert set(usage["usage"]) == USAGE_KEYS
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_waiting_tokens_are_one_event() -> None:
    stream = events(await Server(says("one two three four", per_delta=100)).chat(stream=True))
    assert contents(stream) == ["one two three four"]


@pytest.mark.parametrize("per_delta", [1, 2, 7])
@pytest.mark.parametrize("stop", [None, ["five"], ["o t", "fiv"], "🧿"])
@pytest.mark.parametrize("include", [False, True])
async def test_stream_and_whole_answer_have_the_same_text(per_delta: int, stop: Any, include: bool) -> None:
    # BR-a04, BR-a07, BR-a19
    script = says("one two three 🫠 four five 🧿 six", FinishReason.LENGTH, per_delta)
    fields = {"stop": stop, "include_stop_str_in_output": include}
    whole = (await Server(script).chat(**fields)).json()["choices"][0]
    stream = events(await Server(script).chat(stream=True, **fields))
    assert "".join(contents(stream)) == whole["message"]["content"]
    end = stream[-2]["choices"][0]
    assert (end["finish_reason"], end["stop_reason"]) == (whole["finish_reason"], whole["stop_reason"])
    assert "\ufffd" not in whole["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_generation_with_one_abort(stream: bool) -> None:
    server = Server(says("one two three four five", per_delta=2))
    response = await server.chat(stop=["three", "never"], stream=stream)
    if stream:
        choice = events(response)[-2]["choices"][0]
    else:
        choice = response.json()["choices"][0]
        assert choice["message"]["content"] == "one two "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "three")
    assert server.backend.aborts == [([0], AbortCause.STOP_STRING)]


async def test_no_abort_when_the_engine_ended_with_the_stop_string() -> None:
    server = Server(says("one two three", FinishReason.LENGTH, per_delta=100))
    assert (await server.chat(stop="three")).json()["choices"][0]["finish_reason"] == "stop"
    assert server.backend.aborts == []


async def test_a_stop_token_is_the_stop_reason() -> None:
    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        assert sampling.stop_token_ids == (77,)
        return [TokenDelta([*ids("hello"), 77], FinishReason.STOP, stop_reason=77)]

    choice = (await Server(script).chat(stop_token_ids=[77])).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("hello", 77)


@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices_are_complete_seeded_and_summed(stream: bool) -> None:
    # BR-g10
    texts = ["one", "two three", "four five one", "hello there"]

    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        return says(texts[number])(number, prompt, sampling)

    server = Server(script)
    options = {"include_usage": True} if stream else None
    response = await server.chat(n=4, seed=2**63 - 2, stream=stream, stream_options=options)
    if stream:
        *chunks, last, done = events(response)
        assert done == "[DONE]"
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2, 3]
        assert sum("role" in choice["delta"] for choice in choices) == 4
        joined = ["".join(c["delta"].get("content", "") for c in choices if c["index"] == i) for i in range(4)]
    else:
        last = response.json()
        assert [choice["index"] for choice in last["choices"]] == [0, 1, 2, 3]
        joined = [choice["message"]["content"] for choice in last["choices"]]
    assert joined == texts
    seeds = [sampling.seed for _, sampling, _ in server.backend.submissions]
    assert seeds == [2**63 - 2, 2**63 - 1, 2**63, 2**63 + 1]
    assert last["usage"]["completion_tokens"] == sum(len(ids(text)) + 1 for text in texts)
    assert last["usage"]["prompt_tokens"] == len(server.backend.submissions[0][0])


async def test_without_a_seed_requests_differ() -> None:
    # BR-g01
    server = Server()
    for _ in range(3):
        await server.chat()
    assert len({sampling.seed for _, sampling, _ in server.backend.submissions}) == 3


async def test_cached_tokens_are_reported() -> None:
    steps: list[Step] = [TokenDelta(ids("a"), cached_tokens=9), TokenDelta([2], FinishReason.STOP)]
    for n in (1, 3):  # of one prompt, which counts once
        usage = (await Server(lambda *_: steps).chat(n=n)).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 9}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RejectReason.OVERLOADED, 429),
        (RejectReason.NO_ENGINE, 503),
        (RejectReason.DUPLICATE, 503),
        (RejectReason.UNKNOWN_MODEL, 404),
    ],
)
async def test_a_rejection_is_a_status_code_with_advice(stream: bool, reason: RejectReason, status: int) -> None:
    server = Server()
    server.backend.rejections[0] = Rejected(reason, "no room", 2.2)
    response = await server.chat(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "no room"
    assert response.headers.get("retry-after") == (None if status == 404 else "3")
    assert server.backend.aborts == []


async def test_one_rejected_choice_ends_the_accepted_ones() -> None:
    server = Server()
    server.backend.rejections[2] = Rejected(RejectReason.OVERLOADED, "no room", 0)
    response = await server.chat(n=4, stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    [(numbers, cause)] = server.backend.aborts
    assert cause is AbortCause.ERROR
    assert 2 not in numbers
    assert {0, 1} <= set(numbers)


@pytest.mark.parametrize(("retryable", "status"), [(True, 503), (False, 500)])
async def test_a_failed_generation_is_an_error(retryable: bool, status: int) -> None:
    steps: list[Step] = [TokenDelta(ids("one")), GenerationFailed("engine core lost", retryable)]
    response = await Server(lambda *_: list(steps)).chat()
    assert (response.status_code, response.json()["error"]["message"]) == (status, "engine core lost")


async def test_a_failure_in_mid_stream_is_an_error_event_and_no_done() -> None:
    steps: list[Step] = [TokenDelta(ids("one")), GenerationFailed("engine core lost", True)]
    server = Server(lambda *_: list(steps))
    response = await server.chat(stream=True, n=2)
    stream = events(response)
    assert response.status_code == 200
    assert contents(stream) == ["one"]
    assert stream[-1]["error"]["message"] == "engine core lost"
    [(numbers, cause)] = server.backend.aborts
    assert (numbers, cause) == ([0, 1], AbortCause.ERROR)


async def test_a_fault_of_ours_in_mid_stream_tells_nothing_about_itself() -> None:
    class Broken(list[Step]):
        def pop(self, index: int = -1) -> Step:  # type: ignore[override]
            raise ZeroDivisionError("secret")

    server = Server(lambda *_: [TokenDelta([1])])
    original = server.backend.submit

    async def submit(*arguments: Any) -> Any:
        collector = await original(*arguments)
        collector._steps = Broken([TokenDelta([1])])
        return collector

    server.backend.submit = submit  # type: ignore[method-assign]
    stream = events(await server.chat(stream=True))
    assert stream[-1]["error"] == {
        "message": "internal server error",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert [numbers for numbers, _ in server.backend.aborts] == [[0]]
    response = await server.chat()
    assert response.status_code == 500
    assert "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_templates_refusal_is_400_before_the_stream(stream: bool) -> None:
    # BR-n09
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}x"
    server = Server(model=ServedModel(make_card(chat_template=template), "hash"))
    response = await server.chat(messages=[{"role": "system", "content": "x"}], stream=stream)
    assert (response.status_code, response.json()["error"]["message"]) == (400, "System role not supported")
    assert server.backend.submissions == []


async def test_a_model_without_template_refuses_chats() -> None:
    server = Server(model=ServedModel(make_card(chat_template=None), "hash"))
    assert (await server.chat()).status_code == 400
    assert (await server.complete()).status_code == 200


async def test_template_arguments_reach_the_template() -> None:
    template = "{% if thinking %}hello{% else %}there{% endif %}{% if add_generation_prompt %}!{% endif %}"
    server = Server(model=ServedModel(make_card(chat_template=template), "hash"))
    await server.chat(chat_template_kwargs={"thinking": True})
    await server.chat(add_generation_prompt=False)
    assert [prompt for prompt, _, _ in server.backend.submissions] == [ids("hello!"), ids("there")]


async def test_the_last_message_can_be_continued() -> None:
    # BR-n03, BR-n04
    server = Server(model=ServedModel(make_card(chat_template=CHATML), "hash"))
    messages = [user("hi"), {"role": "assistant", "content": "hello"}]
    await server.chat(messages=messages, continue_final_message=True)
    await server.chat(messages=messages)
    continued, answered = (tiny_model().tokenizer.decode(prompt) for prompt, _, _ in server.backend.submissions)
    assert continued == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello"
    assert answered == continued + "<|im_end|>\n<|im_start|>assistant\n"


async def test_priority_is_handed_on() -> None:
    server = Server()
    await server.chat(priority=-3)
    assert server.backend.submissions[0][2] == -3


async def test_the_salt_of_stored_prefixes_is_handed_on() -> None:
    server = Server()
    for salt in ({"cache_salt": "tenant"}, {"cache_salt": None}, {}):
        assert (await server.chat(**salt)).status_code == 200
    assert server.backend.cache_salts == ["tenant", "", ""]
    for unusable in ("", "s" * 257, 7):
        assert (await server.chat(cache_salt=unusable)).status_code == 400


async def test_a_draining_server_takes_nothing_new() -> None:
    server = Server()
    server.backend.taking = False
    response = await server.chat()
    assert (response.status_code, response.headers["connection"]) == (503, "close")
    assert response.json()["error"]["code"] == "shutting_down"


async def test_no_model_yet_is_503() -> None:
    server = Server()
    server.backend._models.clear()
    response = await server.chat()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_a_long_conversation_renders_and_encodes_off_the_event_loop() -> None:
    server = Server(model=ServedModel(make_card(max_model_len=100_000), "hash"))
    response = await server.chat(messages=[user("one two three " * 100)] * 200, max_tokens=5)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] > 20_000
