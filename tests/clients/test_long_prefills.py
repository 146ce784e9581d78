"""A stream whose prefill takes long is never silent, and OpenAI's client passes over what keeps it open."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

BODY = {"model": "sim", "prompt": "a" * 60, "max_tokens": 3, "stream": True}


@pytest.fixture(scope="module")
def slow_cluster() -> Iterator[ShoalProcess]:
    """60 tokens of prompt take 0.6 s."""
    with running_shoal("sim:prefill_ms_per_token=10", "--engines", "1", "--sse-keep-alive-s", "0.1") as shoal:
        yield shoal


def test_comments_come_while_the_prompt_is_computed(slow_cluster: ShoalProcess) -> None:
    # BR-l01, BR-l02
    response = httpx.post(f"{slow_cluster.url}/v1/completions", json=BODY, timeout=30)
    first, *rest = response.text.split("\n\n")
    comments = [first, *rest].count(": keep-alive")
    assert first == ": keep-alive"
    assert comments >= 2
    assert [text for text in rest if text != ": keep-alive"][-2:] == ["data: [DONE]", ""]
    assert response.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in response.headers


def test_the_client_sees_tokens_alone(slow_cluster: ShoalProcess) -> None:
    client = OpenAI(base_url=f"{slow_cluster.url}/v1", api_key="none", max_retries=0)
    chunks = list(client.completions.create(model="sim", prompt="b" * 60, max_tokens=3, stream=True))
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"


def test_a_simulated_engine_core_gives_simulated_log_probabilities(slow_cluster: ShoalProcess) -> None:
    client = OpenAI(base_url=f"{slow_cluster.url}/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="sim", prompt="ab", max_tokens=3, logprobs=2, echo=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or []) == 5
