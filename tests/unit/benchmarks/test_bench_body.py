import json
from typing import Any

import pytest

from benchmarks.body import BodyMaker
from benchmarks.config import ServeBenchConfig
from benchmarks.workload import Prompt, synthetic_prompt


def body(prompt: Prompt, **options: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(BodyMaker(ServeBenchConfig(**options), "m").body(prompt))
    return decoded


def test_a_streamed_chat_asks_for_usage() -> None:
    assert body(synthetic_prompt([], ["hi"], chat=True), max_tokens=5) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.0,
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_length_options_and_the_extra_body_are_sent() -> None:
    options = {"min_tokens": 2, "ignore_eos": True, "stream": False, "extra_body": '{"top_p": 0.5, "temperature": 1}'}
    sent = body(Prompt(prompt="hi", max_tokens=9), **options)
    assert sent == {
        "model": "m",
        "prompt": "hi",
        "temperature": 1,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "stream": False,
        "top_p": 0.5,
    }


def test_a_probe_asks_for_one_token_whatever_the_options_say() -> None:
    config = ServeBenchConfig(min_tokens=8, ignore_eos=True, extra_body='{"min_tokens": 5, "stream": true, "k": 1}')
    sent = json.loads(BodyMaker(config, "m").probe_body(Prompt(prompt="hi")))
    assert sent == {"model": "m", "prompt": "hi", "temperature": 0.0, "max_tokens": 1, "stream": False, "k": 1}


@pytest.mark.parametrize("extra", ["[1]", "{", "3"])
def test_an_extra_body_that_is_no_object_is_refused(extra: str) -> None:
    with pytest.raises(ValueError, match="extra-body"):
        BodyMaker(ServeBenchConfig(extra_body=extra), "m")
