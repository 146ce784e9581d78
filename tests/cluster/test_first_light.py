"""An OpenAI client chats with the demo model through the whole cluster."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI
from shoal_process import ShoalProcess

pytestmark = [pytest.mark.cluster, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(demo_cluster: ShoalProcess) -> OpenAI:
    return OpenAI(base_url=f"{demo_cluster.url}/v1", api_key="none", max_retries=0)


def test_chat_names_paris_and_streams_the_same_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=32)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, max_tokens=32, stream=True, stream_options={"include_usage": True}
    )
    text, reasons, usage = "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert usage == whole.usage


def test_both_engine_cores_work(client: OpenAI, demo_cluster: ShoalProcess) -> None:
    def ask(number: int) -> str:
        answer = client.completions.create(model=MODEL, prompt=f"{number} apples and", max_tokens=8, temperature=0)
        return answer.choices[0].text

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    work = Counter(
        {labels["engine"]: value for labels, value in demo_cluster.metrics()["shoal:engine_generation_tokens_total"]}
    )
    assert set(work) == {"0", "1"}
    assert all(tokens > 0 for tokens in work.values()), work


def test_models_names_the_demo_model(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_seeded_sampling_repeats_beside_other_requests(client: OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=FRANCE, temperature=0.9, top_p=0.9, seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content or ""

    alone = [sample(seed) for seed in range(3)]
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(sample, [0, 7, 8, 1, 9, 10, 2, 11, 12, 0, 1, 2]))
    assert [together[i] for i in (0, 3, 6)] == alone
    assert together[9:] == alone


def test_fifty_greedy_requests_together_give_the_texts_that_they_give_alone(client: OpenAI) -> None:
    prompts = [f"Story {number}: {'once ' * (number % 7)}upon a time a {number}-year-old" for number in range(50)]

    def generate(prompt: str) -> tuple[str, str]:
        choice = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=8 + len(prompt) % 17, temperature=0
        ).choices[0]
        return choice.text, choice.finish_reason

    alone = [generate(prompt) for prompt in prompts]
    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(generate, prompts))
    assert together == alone
