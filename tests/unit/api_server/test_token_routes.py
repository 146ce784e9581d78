"""/tokenize and /detokenize: what the model would be given, without asking it."""

from typing import Any

import pytest
from http_fakes import CHATML, Server, ids, tiny_model, user


async def post(path: str, server: Server | None = None, **body: Any) -> Any:
    response = await (server or Server()).client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_text_as_the_completions_route_would_have_it() -> None:
    server = Server()
    answer = await post("/tokenize", server, prompt="hello there")
    assert answer == {"count": 2, "max_model_len": 200, "tokens": ids("hello there"), "token_strs": None}
    await server.complete(prompt="hello there")
    assert server.backend.submissions[0][0] == answer["tokens"]


async def test_messages_as_the_chat_route_would_have_them() -> None:
    server = Server()
    answer = await post("/tokenize", server, messages=[user("hi")])
    await server.chat(messages=[user("hi")])
    assert server.backend.submissions[0][0] == answer["tokens"]
    without = await post("/tokenize", messages=[user("hi")], add_generation_prompt=False)
    assert answer["tokens"][: without["count"]] == without["tokens"]
    assert without["count"] < answer["count"]
    assert CHATML.startswith("{% for")


async def test_names_of_the_tokens() -> None:
    answer = await post("/tokenize", prompt="hello there", return_token_strs=True)
    assert answer["token_strs"] == ["hello", "\u0120there"]
    answer = await post("/tokenize", messages=[user("hi")], return_token_strs=True)
    assert answer["token_strs"][0] == "<|im_start|>"


async def test_texts_may_be_longer_than_the_context() -> None:
    assert (await post("/tokenize", prompt="x " * 500))["count"] > 200


async def test_back_to_text() -> None:
    assert await post("/detokenize", tokens=ids("hello \N{FLEXED BICEPS}")) == {"prompt": "hello \N{FLEXED BICEPS}"}
    assert await post("/detokenize", tokens=[1, *ids("hi"), 2]) == {"prompt": "<|im_start|>hi<|im_end|>"}
    assert await post("/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [5, tiny_model().card.vocab_size]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
)
async def test_bad_ones_are_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    response = await Server().client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_unknown_models_are_not_found() -> None:
    for path, body in [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})]:
        assert (await Server().client.post(path, json={"model": "nope", **body})).status_code == 404


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/docs", "/openapi.json"])
async def test_they_want_the_key_like_other_routes(path: str) -> None:
    # BR-l05
    server = Server(api_key=("secret",))
    assert (await server.client.get(path)).status_code == 401
