"""Where requests had better run: block keys, headers, body fields."""

from typing import Any

import pytest
from http_fakes import Server, ids, tiny_model, user
from starlette.datastructures import Headers

from api_server import placement
from api_server.errors import ApiError
from api_server.generation_backend import Rejected
from api_server.placement import Placement, with_block_keys
from api_server.placement_hints import MAX_SESSION_KEY_CHARS, placement_by_headers
from protocol.codec import pack_token_ids
from protocol.messages import RejectReason
from protocol.prefix_hash import packed_block_keys, prefix_root

PROMPT = list(range(150))


def keys(prompt: list[int], salt: str = "") -> bytes:
    return packed_block_keys(prefix_root("hash", "", salt), pack_token_ids(prompt))


@pytest.mark.parametrize("long_from", [1_000, 100])
async def test_a_prompts_blocks_are_named_as_engine_cores_name_them(
    long_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "LONG_PROMPT_TOKENS", long_from)
    for salt in ("", "tenant"):
        placed = await with_block_keys(Placement("s", 2), tiny_model(), PROMPT, salt)
        assert placed == Placement("s", 2, keys(PROMPT, salt))
        assert len(placed.block_keys) == 32


async def test_all_choices_of_a_prompt_have_its_keys() -> None:
    server = Server()
    texts = ["one two three " * 20, "four five six " * 12]
    response = await server.complete(prompt=texts, n=2, max_tokens=5, cache_salt="x")
    assert response.status_code == 200
    first, second = (keys(ids(text), "x") for text in texts)
    assert len(first) == 16 and first != second
    assert [placed.block_keys for placed in server.backend.placements] == [first, first, second, second]


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, Placement()),
        ({}, {"prompt_cache_key": "k"}, Placement("k")),
        ({}, {"prompt_cache_key": "k", "session_id": "s"}, Placement("s")),
        ({"X-Session-Id": "h"}, {"session_id": "s"}, Placement("h")),
        ({"X-data-parallel-rank": "3"}, {"session_id": "s"}, Placement("s", 3)),
        ({"X-Data-Parallel-Rank": "0", "X-Session-Id": "h"}, {}, Placement("h", 0)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_hints_reach_the_cluster(
    headers: dict[str, str], body: dict[str, Any], expected: Placement, stream: bool
) -> None:
    server = Server()
    for route, prompt in (("chat/completions", {"messages": [user("hi")]}), ("completions", {"prompt": "hi"})):
        answer = await server.client.post(f"/v1/{route}", json={**prompt, **body, "stream": stream}, headers=headers)
        assert answer.status_code == 200
    assert server.backend.placements == [expected, expected]


@pytest.mark.parametrize("rank", ["", "-1", "+1", "1.0", "one", "0x1", "1,2", "²", "1234567"])
def test_a_rank_is_an_integer_from_0_on(rank: str) -> None:
    with pytest.raises(ApiError) as error:
        placement_by_headers(Headers({"x-data-parallel-rank": rank}))
    assert error.value.kind.value.status == 400
    assert error.value.param == "x-data-parallel-rank"


@pytest.mark.parametrize("key", ["", "x" * (MAX_SESSION_KEY_CHARS + 1)])
async def test_session_keys_have_a_length(key: str) -> None:
    server = Server()
    for field in ("session_id", "prompt_cache_key"):
        response = await server.chat(**{field: key})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field
    response = await server.client.post("/v1/chat/completions", json={}, headers={"x-session-id": key})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-session-id"
    assert server.backend.placements == []


async def test_a_wanted_engine_core_that_there_is_not_is_the_callers_fault() -> None:
    server = Server()
    server.backend.rejections[0] = Rejected(RejectReason.NO_SUCH_ENGINE, "there is no engine core 9", 0.0)
    response = await server.chat()
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-data-parallel-rank"
    assert "9" in response.json()["error"]["message"]
    assert "retry-after" not in response.headers
