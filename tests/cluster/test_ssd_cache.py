"""Prefixes that outlive the process that computed them."""

import time
from pathlib import Path

import pytest
from openai import OpenAI
from shoal_process import ShoalProcess, running_shoal

pytestmark = [pytest.mark.cluster, pytest.mark.model]

PROMPT = " ".join(f"{number} is a number, and so is {number * 7}." for number in range(70))
"""About 1,000 tokens."""


def ask(shoal: ShoalProcess, prompt: str) -> tuple[float, int, int, str]:
    """Seconds to the first token; tokens of the prompt and how many of them were cached; the text."""
    client = OpenAI(base_url=f"{shoal.url}/v1", api_key="none", max_retries=0)
    asked_s, first_s, usage, text = time.monotonic(), None, None, ""
    for chunk in client.completions.create(
        model="SmolLM2-135M-Instruct",
        prompt=prompt,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        first_s = first_s or time.monotonic()
        usage = chunk.usage or usage
        text += "".join(choice.text for choice in chunk.choices)
    assert first_s is not None and usage is not None and usage.prompt_tokens_details is not None
    return first_s - asked_s, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0, text


def _nbytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*.safetensors"))


def test_a_killed_engine_core_finds_its_prefixes_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with running_shoal("--engines", "1", "--api-servers", "1", "--ssd-cache-dir", str(folder)) as shoal:
        ask(shoal, "Hello.")
        cold_s, prompt_tokens, none_cached, text = ask(shoal, PROMPT)
        assert none_cached == 0
        whole = prompt_tokens // 64
        shoal.wait_for(lambda: shoal.metric("shoal:ssd_cache_written_blocks_total") >= whole, 20, "not written")
        shoal.wait_for(lambda: shoal.metric("shoal:ssd_cache_bytes") == _nbytes(folder), 20, "another size is told")

        (engine_core,) = shoal.children("engine-core")
        engine_core.kill()
        engine_core.wait(5)
        shoal.wait_for(lambda: len(shoal.children("engine-core")) == 1, 10, "not started again")
        shoal.wait_for(lambda: shoal.engines_up() == 1, 60, "the engine core does not come back")
        ask(shoal, "Hello.")
        warm_s, _, cached, warm_text = ask(shoal, PROMPT)
        print(f"{prompt_tokens} tokens: cold {cold_s:.2f} s, from the SSD {warm_s:.2f} s: 1/{cold_s / warm_s:.1f}")
        assert (cached, warm_text) == (min(whole * 64, prompt_tokens - 1), text)
        assert shoal.metric("shoal:ssd_cache_hits_total") == whole * 64
        assert warm_s <= cold_s / 4
