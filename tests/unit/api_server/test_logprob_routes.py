"""Log probabilities, token ids and running usage in the answers of both routes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from http_fakes import Script, Server, Step, events, ids
from msgspec import structs

from api_server.generation_backend import TokenDelta
from protocol.logprobs import LOGPROB_FLOOR, TokenLogprobs
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams

TEXT = "hello there"
TOKENS = [*ids(TEXT), 2]
INVALID = ids("\N{FLEXED BICEPS}")[0]


def told(index: int, token_id: int, wanted: int) -> TokenLogprobs:
    tops = [token_id + 1, INVALID, 0, 1][:wanted]
    return TokenLogprobs(-1.5 - index, 5, tops, [-0.25 * (place + 1) for place in range(len(tops))])


def plays(token_ids: Sequence[int] = TOKENS, finish: FinishReason = FinishReason.STOP) -> Script:
    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        wanted = sampling.logprobs
        return [
            TokenDelta(
                [token_id],
                finish if index == len(token_ids) - 1 else None,
                logprobs=[] if wanted is None else [told(index, token_id, wanted)],
            )
            for index, token_id in enumerate(token_ids)
        ]

    return script


async def test_chat_has_an_entry_a_token_with_its_alternatives() -> None:
    # BR-f07, BR-f12
    server = Server(plays())
    body = (await server.chat(logprobs=True, top_logprobs=2)).json()
    assert server.backend.submissions[0][1].logprobs == 2
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"] == len(TOKENS)
    assert "".join(entry["token"] for entry in content) == TEXT + "<|im_end|>"
    assert [entry["logprob"] for entry in content] == [-1.5 - index for index in range(len(TOKENS))]
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(TOKENS)
    assert content[0]["top_logprobs"][1] == {"token": "\ufffd", "logprob": -0.5, "bytes": [0xF0]}


@pytest.mark.parametrize("asked", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 0}])
async def test_without_a_number_there_are_no_alternatives(asked: dict[str, Any]) -> None:
    # BR-f06
    body = (await Server(plays()).chat(**asked)).json()
    assert [entry["top_logprobs"] for entry in body["choices"][0]["logprobs"]["content"]] == [[]] * len(TOKENS)


@pytest.mark.parametrize("asked", [{}, {"logprobs": False}])
async def test_who_does_not_ask_gets_none(asked: dict[str, Any]) -> None:
    server = Server(plays())
    assert (await server.chat(**asked)).json()["choices"][0]["logprobs"] is None
    assert (await server.complete()).json()["choices"][0]["logprobs"] is None
    assert [sampling.logprobs for _, sampling, _ in server.backend.submissions] == [None, None]


async def test_a_chat_stream_has_the_same_entries_as_the_whole_answer() -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "n": 2, "stop": ["re"]}
    whole = (await Server(plays()).chat(**asked)).json()
    *chunks, done = events(await Server(plays()).chat(stream=True, **asked))
    assert done == "[DONE]"
    for index in range(2):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        content = [entry for choice in choices for entry in (choice.get("logprobs") or {"content": []})["content"]]
        assert content == whole["choices"][index]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content).startswith("hello the")


async def test_completions_have_parallel_lists() -> None:
    # BR-f12
    body = (await Server(plays()).complete(logprobs=2)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"][:-1]) == TEXT
    assert {len(entries) for entries in logprobs.values()} == {len(TOKENS)}
    assert logprobs["token_logprobs"] == [-1.5 - index for index in range(len(TOKENS))]
    for offset, token in zip(logprobs["text_offset"][:-1], logprobs["tokens"][:-1], strict=True):
        assert TEXT[offset:].startswith(token)
    assert logprobs["text_offset"][-1] == len(TEXT)
    alternatives = list(logprobs["top_logprobs"][0].items())
    assert alternatives[1:] == [("bytes:\\xf0", -0.5), (logprobs["tokens"][0], -1.5)]


async def test_a_stream_of_completions_has_the_same_lists() -> None:
    whole = (await Server(plays()).complete(logprobs=0, stop=["ere"])).json()["choices"][0]["logprobs"]
    *chunks, _ = events(await Server(plays()).complete(logprobs=0, stop=["ere"], stream=True))
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert {name: [entry for piece in pieces for entry in piece[name]] for name in whole} == whole
    assert [list(named) for named in whole["top_logprobs"]] == [[token] for token in whole["tokens"]]


async def test_infinite_ones_are_a_finite_floor_in_strict_json() -> None:
    # BR-f01, BR-f02
    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        impossible = TokenLogprobs(float("nan"), 1, [5], [float("-inf")])
        return [TokenDelta([7], FinishReason.LENGTH, logprobs=[impossible])]

    response = await Server(script).chat(logprobs=True, top_logprobs=1)
    body = json.loads(response.content, parse_constant=lambda word: pytest.fail(word))
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (LOGPROB_FLOOR, LOGPROB_FLOOR)


async def test_tokens_can_be_named_by_their_ids() -> None:
    body = (await Server(plays()).complete(logprobs=1, return_tokens_as_token_ids=True)).json()
    assert body["choices"][0]["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in TOKENS]
    chat = (await Server(plays()).chat(logprobs=True, return_tokens_as_token_ids=True)).json()
    assert chat["choices"][0]["logprobs"]["content"][0]["token"] == f"token_id:{TOKENS[0]}"


async def test_token_ids_of_prompt_and_answer() -> None:
    server = Server(plays())
    body = (await server.chat(return_token_ids=True)).json()
    assert body["prompt_token_ids"] == server.backend.submissions[0][0]
    assert (body["choices"][0]["token_ids"], body["choices"][0]["logprobs"]) == (TOKENS, None)
    body = (await server.complete(return_token_ids=True)).json()
    assert (body["choices"][0]["prompt_token_ids"], body["choices"][0]["token_ids"]) == (ids("hi"), TOKENS)
    *chunks, _ = events(await server.chat(return_token_ids=True, stream=True))
    assert chunks[0]["prompt_token_ids"] == server.backend.submissions[0][0]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == TOKENS
    *chunks, _ = events(await server.complete(return_token_ids=True, stream=True))
    assert chunks[0]["choices"][0]["prompt_token_ids"] == ids("hi")
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == TOKENS


async def test_usage_so_far_in_each_chunk() -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    *chunks, last, _ = events(await Server(plays()).complete(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, len(TOKENS))
    assert last["usage"] == chunks[-1]["usage"]


async def test_a_completion_begins_with_its_prompt_when_that_is_wanted() -> None:
    body = (await Server(plays()).complete(prompt=["the fox", ids("one ")], echo=True)).json()
    assert [choice["text"] for choice in body["choices"]] == ["the fox" + TEXT, "one " + TEXT]
    *chunks, _ = events(await Server(plays()).complete(prompt="the fox", echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the fox" + TEXT


async def test_a_truncated_prompt_keeps_its_end() -> None:
    server = Server(plays())
    assert (await server.complete(prompt="hello there fox", truncate_prompt_tokens=2)).status_code == 200
    assert server.backend.submissions[0][0] == ids("hello there fox")[-2:]
    assert (await server.complete(prompt="x " * 300, truncate_prompt_tokens=-1)).status_code == 200
    assert len(server.backend.submissions[1][0]) == 199


async def test_bad_words_and_allowed_tokens_reach_the_sampling() -> None:
    server = Server(plays())
    await server.chat(bad_words=["fox"], allowed_token_ids=[5, 6])
    sampling = server.backend.submissions[0][1]
    assert sampling.bad_words_token_ids == (tuple(ids("fox")), tuple(ids(" fox")))
    assert sampling.allowed_token_ids == (5, 6)


def scored(prompt_ids: Sequence[int], wanted: int) -> list[TokenLogprobs]:
    return [told(100 + place, token_id, wanted) for place, token_id in enumerate(prompt_ids[1:])]


def plays_scored() -> Script:
    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        assert sampling.prompt_logprobs == sampling.logprobs is not None
        [first, *rest] = plays()(number, prompt, sampling)
        assert isinstance(first, TokenDelta)
        return [structs.replace(first, prompt_logprobs=scored(prompt, sampling.logprobs)), *rest]

    return script


async def test_an_echoed_prompt_has_its_log_probabilities_too() -> None:
    # BR-f09, BR-f12: what evaluation harnesses read likelihoods from
    prompt = "the fox \N{FLEXED BICEPS} jumps"
    body = (await Server(plays_scored()).complete(prompt=prompt, echo=True, logprobs=1)).json()
    [choice] = body["choices"]
    logprobs, count = choice["logprobs"], len(ids(prompt))
    assert choice["text"] == prompt + TEXT
    assert {len(entries) for entries in logprobs.values()} == {count + len(TOKENS)}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1:count] == [-101.5 - place for place in range(count - 1)]
    assert logprobs["token_logprobs"][count:] == [-1.5 - index for index in range(len(TOKENS))]
    for offset, token in zip(logprobs["text_offset"][:-1], logprobs["tokens"][:-1], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
    assert logprobs["text_offset"][count] == len(prompt)


async def test_a_stream_tells_the_same_of_an_echoed_prompt() -> None:
    asked = {"prompt": ["the fox", ids("x")], "echo": True, "logprobs": 0, "n": 2}
    whole = (await Server(plays_scored()).complete(**asked)).json()
    *chunks, _ = events(await Server(plays_scored()).complete(stream=True, **asked))
    for index in range(4):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == whole["choices"][index]["text"]
        pieces = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        expected = whole["choices"][index]["logprobs"]
        assert {name: [entry for piece in pieces for entry in piece[name]] for name in expected} == expected


async def test_log_probabilities_of_a_prompt_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api_server.sampling_options.MAX_PROMPT_LOGPROBS", 20)
    response = await Server(plays_scored()).complete(prompt=[[5] * 11], echo=True, logprobs=1)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")


def plays_prompt_scores() -> Script:
    def script(number: int, prompt: Sequence[int], sampling: SamplingParams) -> list[Step]:
        assert sampling.prompt_logprobs is not None
        [first, *rest] = plays()(number, prompt, sampling)
        assert isinstance(first, TokenDelta)
        return [structs.replace(first, prompt_logprobs=scored(prompt, sampling.prompt_logprobs)), *rest]

    return script


async def test_a_prompt_in_vllms_shape() -> None:
    server = Server(plays_prompt_scores())
    [choice] = (await server.complete(prompt="the fox", prompt_logprobs=1)).json()["choices"]
    first, *others = choice["prompt_logprobs"]
    assert (first, len(others), choice["logprobs"]) == (None, len(ids("the fox")) - 1, None)
    token_id = ids("the fox")[1]
    likeliest, own = others[0].items()
    assert (likeliest[0], likeliest[1]["logprob"], likeliest[1]["rank"]) == (str(token_id + 1), -0.25, 1)
    assert own == (str(token_id), {"logprob": -101.5, "rank": 5, "decoded_token": " fox"})
    chat = (await server.chat(prompt_logprobs=0, n=2)).json()
    assert len(chat["prompt_logprobs"]) == len(server.backend.submissions[-1][0])
    assert "prompt_logprobs" not in (await Server(plays()).chat()).json()


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt_logprobs": 21},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 10**9},
        {"prompt_logprobs": 1, "stream": True},
    ],
)
async def test_numbers_for_prompts_are_bounded_and_not_for_streams(asked: dict[str, Any]) -> None:
    # BR-b07
    for response in (await Server().chat(**asked), await Server().complete(**asked)):
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_one_way_to_tell_of_a_prompt_at_a_time() -> None:
    response = await Server().complete(prompt_logprobs=1, echo=True, logprobs=1)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
    server = Server(plays_prompt_scores())
    [choice] = (await server.complete(prompt="the fox", prompt_logprobs=1, echo=True)).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == ("the fox" + TEXT, None)
