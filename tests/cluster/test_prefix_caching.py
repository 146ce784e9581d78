"""What a client is told of stored prefixes, and what the operator is."""

import pytest
from openai import OpenAI
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

ONE_OF_EACH = ("--engines", "1", "--api-servers", "1")
SIM = "sim:decode_ms=1,prefill_ms_per_token=0.02"
PROMPT = "x" * 200
"""A token a byte with the simulated tokenizer: 200 tokens, 3 whole blocks of 64."""


def cached_tokens(shoal: ShoalProcess, prompt: str, stream: bool, salt: str | None = None) -> int:
    client = OpenAI(base_url=f"{shoal.url}/v1", api_key="none", max_retries=0)
    salted = {"cache_salt": salt}
    if not stream:
        usage = client.completions.create(model="sim", prompt=prompt, max_tokens=5, extra_body=salted).usage
    else:
        chunks = client.completions.create(
            model="sim",
            prompt=prompt,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=salted,
        )
        (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage is not None and usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def test_usage_and_metrics_say_what_was_found_stored() -> None:
    with running_shoal(SIM, *ONE_OF_EACH) as shoal:
        assert [cached_tokens(shoal, PROMPT, stream) for stream in (False, False, True)] == [0, 192, 192]
        assert [cached_tokens(shoal, "y" * 200, stream) for stream in (True, True, False)] == [0, 192, 192]
        hits, queries = "shoal:prefix_cache_hits_total", "shoal:prefix_cache_queries_total"
        shoal.wait_for(lambda: shoal.metric(hits) == 4 * 192, 10, "no hits in the metrics")
        assert shoal.metric(queries) == 6 * 200
        assert [cached_tokens(shoal, PROMPT, False, salt) for salt in ("a", "b", "a", None)] == [0, 0, 192, 192]


def test_prefix_caching_can_be_turned_off() -> None:
    with running_shoal(SIM, *ONE_OF_EACH, "--prefix-caching", "false") as shoal:
        assert [cached_tokens(shoal, PROMPT, stream) for stream in (False, False, True)] == [0, 0, 0]
        assert shoal.metric("shoal:prefix_cache_queries_total") == 0
