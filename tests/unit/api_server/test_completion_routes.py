"""POST /v1/completions over a backend that plays scripts."""

from collections.abc import Sequence

from http_fakes import Server, Step, byte_level_json, events, ids, make_card, says
from tokenizers import Tokenizer, processors

from api_server.completion_schema import DEFAULT_MAX_TOKENS
from api_server.served_model import ServedModel
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams


async def test_a_whole_completion() -> None:
    server = Server(says(" there", FinishReason.LENGTH))
    body = (await server.complete(prompt="hello")).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": " there", "finish_reason": "length", "stop_reason": None, "logprobs": None}
    ]
    [(prompt, sampling, _)] = server.backend.submissions
    assert (prompt, sampling.max_tokens) == (ids("hello"), DEFAULT_MAX_TOKENS)


async def test_choices_are_indexed_by_prompt_then_by_n() -> None:
    texts = ["one", "two", "three", "four", "five", "hello"]

    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        return says(texts[number])(number, prompt, sampling)

    server = Server(script)
    body = (await server.complete(prompt=["hello", [5, 6], "the"], n=2, seed=7)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == list(enumerate(texts))
    prompts = [prompt for prompt, _, _ in server.backend.submissions]
    assert prompts == [ids("hello")] * 2 + [[5, 6]] * 2 + [ids("the")] * 2
    assert [sampling.seed for _, sampling, _ in server.backend.submissions] == [7, 8] * 3
    assert body["usage"]["prompt_tokens"] == len(ids("hello")) + 2 + len(ids("the"))


async def test_a_stream_ends_with_a_reason_and_usage() -> None:
    # BR-a15, BR-a16
    response = await Server(says("hello there")).complete(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(response)
    assert (done, usage["choices"]) == ("[DONE]", [])
    assert usage["usage"]["completion_tokens"] == len(ids("hello there")) + 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "hello there"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all(choice["text"] for choice in choices[:-1])


async def test_an_answer_may_be_empty() -> None:
    # the model ends at once
    body = (await Server(says("")).complete()).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("", "stop")
    *chunks, done = events(await Server(says("")).complete(stream=True))
    assert done == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["stop"]


async def test_too_many_generations_are_refused() -> None:
    server = Server()
    response = await server.complete(prompt=["x"] * 100, n=11)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert server.backend.submissions == []


async def test_one_bad_prompt_of_several_stops_all() -> None:
    server = Server()
    response = await server.complete(prompt=[[5], [5] * 500])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert server.backend.submissions == []


async def test_special_tokens_of_the_tokenizer_are_added_where_the_card_says_so() -> None:
    raw = Tokenizer.from_str(byte_level_json())
    raw.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    for adds, given, first in [(True, True, 0), (True, False, 74), (False, True, 74)]:
        server = Server(model=ServedModel(make_card(tokenizer_json=raw.to_str(), adds_special_tokens=adds), "hash"))
        await server.complete(prompt="hi", add_special_tokens=given)
        assert server.backend.submissions[0][0][0] == first
