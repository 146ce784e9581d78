"""Conversations come back to the engine core that has what was said: real processes, over HTTP."""

import functools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

ENGINES = 4
SESSIONS, TURNS, NEW_BYTES = 16, 4, 150
"""A token a byte with the simulated tokenizer."""


@pytest.fixture(scope="module")
def shoal() -> Iterator[ShoalProcess]:
    """Four simulated engine cores and two API servers."""
    sim = "sim:decode_ms=2,prefill_ms_per_token=0.05"
    with running_shoal(sim, "--engines", str(ENGINES), "--api-servers", "2") as running:
        yield running


def complete(
    shoal: ShoalProcess, prompt: str, headers: dict[str, str] | None = None, **fields: object
) -> httpx.Response:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    return http_client().post(f"{shoal.url}/v1/completions", json=body, headers=headers)


@functools.cache
def http_client() -> httpx.Client:
    """One for all requests: making one takes longer than a request."""
    return httpx.Client(timeout=60)


def cached_tokens(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def routed(shoal: ShoalProcess, **labels: str) -> dict[str, int]:
    """Requests by engine core."""
    samples = shoal.metrics().get("shoal:requests_routed_total", [])
    counts: dict[str, int] = {}
    for found, value in samples:
        if all(found[name] == wanted for name, wanted in labels.items()):
            counts[found["engine"]] = counts.get(found["engine"], 0) + int(value)
    return counts


def newly(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {engine: count - before.get(engine, 0) for engine, count in after.items() if count > before.get(engine, 0)}


def converse(shoal: ShoalProcess, name: str, beginning: str) -> tuple[int, int]:
    """Takes all turns; returns the tokens that were cached, and those that could have been."""
    history, cached, possible = beginning, 0, 0
    for turn in range(TURNS):
        prompt = history + f"{name}/{turn}:".ljust(NEW_BYTES, name[-1])
        response = complete(shoal, prompt)
        cached += cached_tokens(response)
        if turn:
            possible += (len(history) - 1) // 64 * 64
        history = prompt + response.json()["choices"][0]["text"]
    return cached, possible


@pytest.mark.parametrize("shared", ["", "All conversations begin with this. " * 16])
def test_conversations_find_what_they_said_and_are_spread(shoal: ShoalProcess, shared: str) -> None:
    before, affine = routed(shoal), sum(routed(shoal, reason="affinity").values())
    with ThreadPoolExecutor(SESSIONS) as callers:
        names = [f"{'shared' if shared else 'own'}-{chr(ord('a') + number)}" for number in range(SESSIONS)]
        results = list(callers.map(lambda name: converse(shoal, name, shared), names))
    cached, possible = (sum(column) for column in zip(*results, strict=True))
    assert cached >= 0.9 * possible
    counts = newly(before, routed(shoal))
    assert sum(counts.values()) == SESSIONS * TURNS
    # 16 short conversations are few to balance; tests/unit/coordinator/test_routing_traces.py has the real bound.
    assert len(counts) >= ENGINES - 1
    assert max(counts.values()) <= SESSIONS * TURNS / 2
    assert sum(routed(shoal, reason="affinity").values()) - affine >= 0.7 * SESSIONS * (TURNS - 1)


def test_metrics_compare_what_was_expected_with_what_was_found(shoal: ShoalProcess) -> None:
    names = ["expected_cached_tokens", "cached_tokens", "missed_cached_tokens"]

    def sums() -> list[float]:
        return [shoal.metric(f"shoal:request_{name}_sum", model_name="sim") for name in names]

    before = sums()
    prompt = "compare " * 40
    assert [cached_tokens(complete(shoal, prompt)) for _ in range(2)] == [0, 319]
    assert [after - earlier for after, earlier in zip(sums(), before, strict=True)] == [256, 319, 0]


def test_the_named_engine_core_answers_and_one_that_there_is_not_is_an_error(shoal: ShoalProcess) -> None:
    for rank in ("2", "0"):
        before = routed(shoal, reason="hint")
        assert complete(shoal, "named", {"X-data-parallel-rank": rank}).status_code == 200
        assert newly(before, routed(shoal, reason="hint")) == {rank: 1}
    for rank in ("4", "-1", "first"):
        response = complete(shoal, "named", {"X-data-parallel-rank": rank})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-data-parallel-rank"


@pytest.mark.parametrize("how", ["header", "session_id", "prompt_cache_key"])
def test_requests_of_a_session_meet(shoal: ShoalProcess, how: str) -> None:
    before = routed(shoal)
    for number in range(4):
        headers = {"X-Session-Id": "one"} if how == "header" else {}
        fields = {} if how == "header" else {how: "one"}
        assert complete(shoal, f"{number} of a session", headers, **fields).status_code == 200
    assert list(newly(before, routed(shoal)).values()) == [4]


def test_another_salt_finds_nothing(shoal: ShoalProcess) -> None:
    prompt = "salted " * 40
    salts = ["a", "a", "b", None, "b"]
    assert [cached_tokens(complete(shoal, prompt, cache_salt=salt)) for salt in salts] == [0, 256, 0, 0, 256]


def test_a_restarted_coordinator_knows_where_prefixes_are(shoal: ShoalProcess) -> None:
    prompts = [f"{number} before the coordinator's death " * 12 for number in range(6)]
    assert [cached_tokens(complete(shoal, prompt)) for prompt in prompts] == [0] * 6
    (coordinator,) = shoal.children("coordinator")
    os.kill(coordinator.pid, signal.SIGKILL)
    shoal.wait_for(lambda: not coordinator.is_running() and shoal.engines_up() == ENGINES, 20, "it does not come back")
    assert all(cached_tokens(complete(shoal, prompt)) >= 384 for prompt in prompts)


@pytest.mark.model
def test_the_demo_models_second_turn_goes_where_the_first_was(demo_cluster: ShoalProcess) -> None:
    client = OpenAI(base_url=f"{demo_cluster.url}/v1", api_key="none", max_retries=0)
    engines = []
    for topic in ("tides", "comets"):
        asked = f"Tell me in one sentence what {topic} are. " + f"I have read about {topic} at school. " * 8
        messages = [{"role": "user", "content": asked}]
        for turn in range(2):
            before = routed(demo_cluster)
            answer = client.chat.completions.create(
                model="SmolLM2-135M-Instruct",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=4,
                temperature=0,
            )
            engines.append(newly(before, routed(demo_cluster)))
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens or 0
            assert cached >= 64 if turn else cached < 64
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content or ""},
                {"role": "user", "content": "And why?"},
            ]
    assert [len(places) for places in engines] == [1] * 4
    assert engines[0::2] == engines[1::2], "both turns of each at the same place"
