"""Bodies that are no requests: always a small 4xx in OpenAI's form, and nothing reaches the backend."""

from typing import Any

import httpx
import msgspec
import pytest
from http_fakes import Server, user

JSON = {"content-type": "application/json"}
ROUTES = ["/v1/chat/completions", "/v1/completions"]


async def post(
    server: Server, body: bytes, route: str = ROUTES[0], headers: dict[str, str] | None = None
) -> httpx.Response:
    return await server.client.post(route, content=body, headers=JSON if headers is None else headers)


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert len(response.content) < 1000
    body = msgspec.json.decode(response.content)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'"x"',
        b"[{}]",
        b"42",
        b"null",
        b"{} {}",
        b"\xff",
        b'{"model": "\xff"}',
        b'{"temperature": NaN}',
        b'{"top_p": Infinity}',
        b'{"presence_penalty": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 6000 + b"}",
        b'{"stop": "cut emoji \\ud83d"}',
        b'{"model": "\\udc00"}',
        b'{"stop": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"extra": ' + b"[" * 200_000 + b"}",
        b"[" * 200_000,
    ],
)
async def test_bodies_that_are_not_json_objects_are_400(route: str, body: bytes) -> None:
    # BR-b09, BR-b10, BR-b27
    server = Server()
    response = await post(server, body, route)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
    assert server.backend.submissions == []


@pytest.mark.parametrize("field", ["content", "name"])
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_a_lone_surrogate_is_refused_before_the_stream_and_a_pair_is_text(field: str, stream: bytes) -> None:
    # BR-b27
    server = Server()
    template = b'{"stream": %s, "messages": [{"role": "user", "content": "x", "%s": "emoji %s"}]}'
    bad = await post(server, template % (stream, field.encode(), b"\\ud83d"))
    assert bad.status_code == 400
    assert "surrogates" in error_of(bad)["message"]
    good = await post(server, template % (stream, field.encode(), b"\\ud83d\\ude00"))
    assert good.status_code == 200


@pytest.mark.parametrize("bias", [{"1": None}, {"1": True}, {"x": 1}, {"1.5": 1}, {"340": 5}, [], "abc"])
@pytest.mark.parametrize("route", ROUTES)
async def test_bad_logit_biases_are_named(bias: Any, route: str) -> None:
    # BR-b01, BR-b03, BR-b04
    server = Server()
    body = msgspec.json.encode({"messages": [user("x")], "prompt": "x", "logit_bias": bias})
    response = await post(server, body, route)
    assert (response.status_code, error_of(response)["param"]) == (400, "logit_bias")
    assert server.backend.submissions == []


async def test_an_infinite_logit_bias_is_named() -> None:
    response = await post(Server(), b'{"prompt": "x", "logit_bias": {"1": 1e400}}', ROUTES[1])
    assert (response.status_code, error_of(response)["param"]) == (400, "logit_bias")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "ten"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", True),
        ("seed", "7"),
        ("seed", 1.5),
        ("seed", True),
        ("n", "2"),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", 5),
        ("model", 5),
        ("stop_token_ids", ["a"]),
        ("stream_options", []),
    ],
)
async def test_wrong_types_are_named(name: str, value: Any) -> None:
    response = await Server().chat(**{name: value})
    assert response.status_code == 400
    assert str(error_of(response)["param"]).partition("[")[0] == name


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
    ],
)
async def test_only_json_is_taken(content_type: str | None, status: int) -> None:
    # BR-b12
    headers = {} if content_type is None else {"content-type": content_type}
    response = await post(Server(), b'{"prompt": "x"}', ROUTES[1], headers)
    assert response.status_code == status
    if status != 200:
        error_of(response)


async def test_a_body_above_the_limit_is_413_with_and_without_its_length() -> None:
    server = Server(max_body_bytes=2000)
    body = b'{"prompt": "' + b"x" * 2000 + b'"}'
    assert (await post(server, body, ROUTES[1])).status_code == 413

    async def chunks() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    response = await server.client.post(ROUTES[1], content=chunks(), headers=JSON)
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


async def test_an_announced_length_above_the_limit_is_refused_unread() -> None:
    read = False

    async def chunks() -> Any:
        nonlocal read
        read = True
        yield b"{}"

    for length in ("16777217", "9" * 5000):
        headers = {**JSON, "content-length": length}
        assert (await Server().client.post(ROUTES[1], content=chunks(), headers=headers)).status_code == 413
    assert not read


async def test_many_wrong_fields_give_one_small_error() -> None:
    # BR-b14
    response = await Server().chat(messages=[{"role": "user", "content": 5, "x": "y" * 1000}] * 3000)
    assert (response.status_code, error_of(response)["param"]) == (400, "messages[0].content")


@pytest.mark.parametrize("header", ["x-request-id", "x-conversation-id", "traceparent", "idempotency-key"])
async def test_optional_headers_change_nothing(header: str) -> None:
    # BR-b26
    response = await post(Server(), b"{}", headers={**JSON, header: "abc"})
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", ["no-such-model", "", "../x", "x" * 5000])
async def test_unknown_models_are_404(route: str, model: str) -> None:
    # BR-b21
    body = msgspec.json.encode({"messages": [user("x")], "prompt": "x", "model": model})
    response = await post(Server(), body, route)
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


async def test_explicit_nulls_mean_not_given() -> None:
    # BR-b02
    names = ["max_tokens", "max_completion_tokens", "model", "temperature", "stop", "tools", "seed", "stream_options"]
    more = ["stream", "n", "logit_bias", "top_p", "presence_penalty", "user", "response_format", "tool_choice"]
    response = await Server().chat(**dict.fromkeys([*names, *more]))
    assert response.status_code == 200


async def test_an_empty_prompt_is_refused() -> None:
    for prompt in ["", [""], [[]], ["a", ""]]:
        server = Server()
        response = await server.complete(prompt=prompt)
        assert response.status_code == 400
        assert error_of(response)["param"] == ("prompt[1]" if len(prompt) == 2 else "prompt")
        assert server.backend.submissions == []


async def test_context_errors_come_before_anything_is_submitted() -> None:
    # BR-b16
    server = Server()
    assert (await server.complete(prompt=[5] * 8, max_tokens=192)).status_code == 200
    server.backend.submissions.clear()
    for prompt, asked in [([5] * 8, 193), ([5] * 200, 1), ([5] * 201, None)]:
        response = await server.complete(prompt=prompt, max_tokens=asked, stream=True)
        assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
    assert server.backend.submissions == []
