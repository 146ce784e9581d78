"""Models, probes, version, metrics; request ids; what is counted; errors of the router."""

import asyncio
import re
from typing import Any

import pytest
from http_fakes import Server, make_card

from api_server.served_model import ServedModel


async def test_models_are_listed_and_told_one_by_one() -> None:
    server = Server(model=ServedModel(make_card(name="org/tiny"), "hash"))
    model = {"id": "org/tiny", "object": "model", "created": 1_700_000_000, "owned_by": "shoal", "max_model_len": 200}
    assert (await server.client.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await server.client.get("/v1/models/org/tiny")).json() == model
    missing = await server.client.get("/v1/models/org/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_health_says_alive_whatever_can_be_served() -> None:
    server = Server()
    server.backend.ready = False
    response = await server.client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_health_is_progress_not_a_reply() -> None:
    server = Server()
    server.backend.progressing = False
    response = await server.client.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "stalled"})


@pytest.mark.parametrize(
    ("ready", "draining", "status", "text"),
    [
        (True, False, 200, "ready"),
        (False, False, 503, "waiting for the coordinator or an engine core"),
        (True, True, 503, "draining"),
    ],
)
async def test_ready(ready: bool, draining: bool, status: int, text: str) -> None:
    # BR-l11
    server = Server()
    server.backend.ready, server.backend.draining = ready, draining
    response = await server.client.get("/ready")
    assert (response.status_code, response.json()) == (status, {"status": text})


async def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", (await Server().client.get("/version")).json()["version"])


async def test_metrics_are_the_metrics_objects_page() -> None:
    response = await Server().client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert (response.text, response.headers["content-type"]) == ("# a comment", "text/plain; version=0.0.4")
    assert response.headers["content-type"] == "text/plain; version=0.0.4"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/completion", 404),
        ("POST", "/v1/models", 405),
        ("GET", "/nope", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/" + "x" * 5000, 404),
        ("HEAD", "/health", 200),
    ],
)
async def test_routing_errors_are_in_openais_form(method: str, path: str, status: int) -> None:
    response = await Server().client.request(method, path)
    assert response.status_code == status
    if status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert len(response.content) < 700
    if status == 405:
        assert response.headers["allow"]


async def test_bytes_that_are_no_text_in_host_and_query_change_nothing() -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/nope",
        "query_string": b"\xff",
        "headers": [(b"host", b"[\xff")],
    }
    await Server().app(scope, receive, send)
    assert sent[0]["status"] == 404
    assert b"GET /nope: Not Found" in sent[1]["body"]


@pytest.mark.parametrize("given", [b"abc-1.2:3_x", b"a" * 128])
async def test_a_usable_request_id_is_echoed(given: bytes) -> None:
    response = await Server().client.get("/health", headers=[(b"x-request-id", given)])
    assert response.headers["x-request-id"] == given.decode()


@pytest.mark.parametrize("given", [b"", b"a" * 129, b"a b", b"caf\xc3\xa9", b"a\x00", b"x" * 100_000, b"a\n"])
async def test_an_unusable_request_id_is_replaced(given: bytes) -> None:
    # BR-h05
    response = await Server().client.get("/health", headers=[(b"x-request-id", given)])
    assert re.fullmatch(r"req-[0-9a-f]{24}", response.headers["x-request-id"])


async def test_equal_request_ids_do_not_mix_requests() -> None:
    # BR-h02
    server = Server()
    headers = {"x-request-id": "same"}
    answers = await asyncio.gather(
        *(server.client.post("/v1/completions", json={"prompt": "x"}, headers=headers) for _ in range(2))
    )
    assert len(server.backend.submissions) == 2
    assert all(answer.json()["choices"][0]["text"] == "hello there" for answer in answers)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/a/b", "/v1/models/{model}"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions", "/v1/completions"),
        ("/v1/completions/more", "other"),
        ("/made/up", "other"),
        ("/health", "/health"),
    ],
)
async def test_route_labels_are_a_closed_set(path: str, label: str) -> None:
    server = Server()
    await server.client.get(path)
    assert [route for route, _ in server.metrics.responses] == [label]


async def test_each_response_is_counted_once() -> None:
    server = Server()
    await server.client.get("/v1/models")
    await server.client.get("/nope")
    await server.chat(temperature=9)
    await server.chat(stream=True)
    chat = "/v1/chat/completions"
    assert server.metrics.responses == [("/v1/models", 200), ("other", 404), (chat, 400), (chat, 200)]
    assert (server.metrics.in_flight, server.metrics.most_in_flight) == (0, 1)


async def test_probes_and_scrapes_are_not_in_flight() -> None:
    server = Server()
    for path in ("/health", "/ready", "/metrics", "/made/up"):
        await server.client.get(path)
    assert server.metrics.most_in_flight == 0


async def test_a_fault_of_ours_names_the_request_and_nothing_else() -> None:
    server = Server()

    def models() -> None:
        raise ZeroDivisionError("secret")

    server.backend.models = models  # type: ignore[method-assign,assignment]
    response = await server.client.get("/v1/models", headers={"x-request-id": "r1"})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal server error (request r1)"
    assert response.headers["x-request-id"] == "r1"
    assert (server.metrics.in_flight, server.metrics.most_in_flight) == (0, 1)
    assert server.metrics.responses == [("/v1/models", 500)]
