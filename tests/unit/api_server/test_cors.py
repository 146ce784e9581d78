"""Web pages of allowed origins may call; browsers are told so without a key."""

import pytest
from http_fakes import Server

ORIGIN = "https://chat.example.org"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


async def test_a_preflight_needs_no_key_but_the_request_does() -> None:
    # BR-l06
    server = Server(api_key=("secret",), allowed_origins=(ORIGIN,))
    response = await server.client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "authorization" in response.headers["access-control-allow-headers"]
    refused = await server.client.post("/v1/chat/completions", json={}, headers={"origin": ORIGIN})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN, "pages may read the error"
    exposed = refused.headers["access-control-expose-headers"]
    assert "x-request-id" in exposed
    assert "retry-after" in exposed


async def test_other_origins_are_refused_with_a_body_of_the_stated_length() -> None:
    # BR-l07
    server = Server(allowed_origins=(ORIGIN,))
    response = await server.client.options("/v1/chat/completions", headers={**PREFLIGHT, "origin": "https://evil"})
    assert response.status_code == 400
    assert int(response.headers["content-length"]) == len(response.content)
    assert "access-control-allow-origin" not in response.headers


async def test_all_origins() -> None:
    response = await Server(allowed_origins=("*",)).client.get("/version", headers={"origin": ORIGIN})
    assert response.headers["access-control-allow-origin"] == "*"


async def test_it_is_off_by_default() -> None:
    response = await Server().client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/v1/chat/completions", {"POST"}), ("/v1/models", {"GET", "HEAD"}), ("/docs", {"GET", "HEAD"})],
)
async def test_options_tells_what_a_route_takes(path: str, methods: set[str]) -> None:
    response = await Server().client.options(path)
    assert (response.status_code, response.content) == (204, b"")
    assert set(response.headers["allow"].split(", ")) == methods
