"""openai-python against a running cluster: what it parses into its types, and what it raises."""

import math

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam
from shoal_process import ShoalProcess

pytestmark = [pytest.mark.cluster, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
FRANCE: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def test_log_probabilities_of_a_chat(client: OpenAI) -> None:
    # BR-f07, BR-f12
    answer = client.chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, max_tokens=16, logprobs=True, top_logprobs=20
    )
    [choice] = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert answer.usage is not None
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    text = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content).decode()
    assert text.removesuffix("<|im_end|>") == choice.message.content
    for entry in choice.logprobs.content:
        likeliest = entry.top_logprobs[0]
        assert (likeliest.token, likeliest.logprob) == (entry.token, entry.logprob), "greedy"
        assert len(entry.top_logprobs) == 20
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-5


def test_a_stream_has_the_same_log_probabilities(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=FRANCE, seed=3, max_tokens=12, n=2, logprobs=True, top_logprobs=2, stop=["."]
    )
    texts, tokens = ["", ""], [[], []]  # type: tuple[list[str], list[list[str]]]
    for chunk in client.chat.completions.create(
        model=MODEL, messages=FRANCE, seed=3, max_tokens=12, n=2, logprobs=True, top_logprobs=2, stop=["."], stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs is not None and choice.logprobs.content is not None:
                tokens[choice.index] += [entry.token for entry in choice.logprobs.content]
    for answered, text, streamed in zip(whole.choices, texts, tokens, strict=True):
        assert answered.message.content == text
        assert answered.logprobs is not None
        assert [entry.token for entry in answered.logprobs.content or []] == streamed


def test_log_probabilities_of_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Paris is", temperature=0, max_tokens=8, logprobs=5)
    [choice] = answer.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    assert [len(each) for each in logprobs.top_logprobs or []] == [5] * 8
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:index])) for index in range(8)]


def test_bias_allowed_tokens_and_bad_words(client: OpenAI, demo_cluster: ShoalProcess) -> None:
    def ask(**extra: object) -> str:
        answer = client.completions.create(
            model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=4, extra_body=extra
        )
        return answer.choices[0].text

    assert "Paris" in ask()
    assert "Paris" not in ask(bad_words=["Paris"])
    tokens = client.post("/../tokenize", body={"prompt": " London London"}, cast_to=object)
    assert isinstance(tokens, dict)
    assert ask(allowed_token_ids=[tokens["tokens"][0]]) == " London" * 4


def test_errors_are_of_the_right_type_and_name_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=FRANCE, top_logprobs=5)
    assert bad.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="x", max_tokens=10**6)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=FRANCE)
    assert unknown.value.code == "model_not_found"


def test_usage_so_far_and_token_ids(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="one two three",
        max_tokens=6,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        },
    )
    chunks = list(stream)
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    ids = [
        token
        for chunk in chunks
        for choice in chunk.choices
        for token in (choice.model_extra or {}).get("token_ids", [])
    ]
    assert len(ids) == 6
