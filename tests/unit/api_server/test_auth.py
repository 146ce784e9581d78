"""API keys: which requests need one, and in which forms it is taken."""

from pathlib import Path

import pytest
from http_fakes import Server

from api_server.auth import BadKeys
from api_server.generation_backend import Rejected
from protocol.messages import RejectReason, TokenAllowance
from protocol.tenants import key_digest, tenant_id

KEY = "s3cret-ключ"


def server() -> Server:
    return Server(api_key=("other", KEY))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/v1/chat/completions",
        "/version",
        "/nope",
        "//v1/models",
        "/V1/models",
        "/health/",
        "/healthz",
    ],
)
async def test_every_path_but_the_probes_needs_a_key(path: str) -> None:
    # BR-l03, BR-l05
    for method in ("GET", "POST", "OPTIONS"):
        response = await server().client.request(method, path)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_probes_need_none(path: str) -> None:
    assert (await server().client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("authorization", f"Bearer {KEY}", 200),
        ("authorization", f"bearer {KEY}", 200),
        ("authorization", f"BEARER   {KEY} ", 200),
        ("authorization", "Bearer other", 200),
        ("x-api-key", KEY, 200),
        ("authorization", KEY, 401),
        ("authorization", f"Basic {KEY}", 401),
        ("authorization", "Bearer", 401),
        ("authorization", "Bearer ", 401),
        ("authorization", "", 401),
        ("authorization", f"Bearer {KEY[:-1]}", 401),
        ("authorization", f"Bearer {KEY}x", 401),
        ("authorization", "Bearer ☃", 401),
        ("x-api-key", "", 401),
    ],
)
async def test_forms_of_a_key(header: str, value: str, status: int) -> None:
    # BR-l05
    headers = [(header.encode(), value.encode())]
    assert (await server().client.get("/v1/models", headers=headers)).status_code == status


async def test_of_two_headers_either_may_hold_the_key() -> None:
    headers = [("authorization", "Bearer wrong"), ("authorization", "Bearer other")]
    assert (await server().client.get("/v1/models", headers=headers)).status_code == 200


async def test_without_keys_nothing_is_asked() -> None:
    assert (await Server().client.get("/v1/models")).status_code == 200


async def test_a_key_file_adds_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# staff\nfirst\n\n  second  \n#third\n")
    made = Server(api_key_file=str(path), api_key=("given",))
    accepted = [
        key
        for key in ("first", "second", "given", "third", "#third", "# staff", "")
        if (await made.client.get("/v1/models", headers={"x-api-key": key})).status_code == 200
    ]
    assert accepted == ["first", "second", "given"]


def test_a_key_file_without_keys_does_not_open_the_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nothing here\n\n")
    with pytest.raises(BadKeys, match="holds no key"):
        Server(api_key_file=str(path))


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_is_refused(key: str) -> None:
    with pytest.raises(BadKeys):
        Server(api_key=(key,))


def test_a_missing_key_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="keys"):
        Server(api_key_file=str(tmp_path / "keys"))


async def test_keys_of_tenants_are_accepted_and_go_on_as_digests(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text('[team]\nkeys = ["sk-team"]\nmax_streams = 1\n')
    own = Server(api_key=("sk-own",), tenants_file=str(path))
    for key, tenant in (("sk-team", tenant_id(key_digest(b"sk-team"))), ("sk-own", "")):
        answer = await own.client.post(
            "/v1/completions", json={"prompt": "hi"}, headers={"authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 200
        assert own.backend.tenants[-1] == tenant
    assert (await own.client.get("/v1/models")).status_code == 401
    assert "sk-team" not in own.backend.tenants[0]


@pytest.mark.parametrize("text", ["", "[team]\nmax_streams = 1", "["])
def test_a_bad_file_of_tenants_does_not_open_the_server(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(BadKeys, match="tenants file"):
        Server(tenants_file=str(path))


async def test_a_tenant_that_has_used_up_its_tokens_is_told_what_it_may() -> None:
    limited = Server()
    allowance = TokenAllowance(600, 20, 58.0)
    limited.backend.rejections[0] = Rejected(RejectReason.RATE_LIMITED, "too much", 12.2, allowance)
    answer = await limited.complete()
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert answer.headers["retry-after"] == "13"
    assert answer.headers["x-ratelimit-limit-tokens"] == "600"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "20"
    assert answer.headers["x-ratelimit-reset-tokens"] == "58.000s"
