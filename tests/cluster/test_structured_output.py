"""Structured output through the whole cluster, with OpenAI's client."""

import json
from typing import Literal

import jsonschema
import psutil
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel
from shoal_process import ShoalProcess

pytestmark = [pytest.mark.cluster, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
ASK = [{"role": "user", "content": "Invent a pet."}]


class Pet(BaseModel):
    """What the model is to fill in."""

    kind: Literal["cat", "dog"]
    age: int
    vaccinated: bool


@pytest.fixture
def client(demo_cluster: ShoalProcess) -> OpenAI:
    return OpenAI(base_url=f"{demo_cluster.url}/v1", api_key="none", max_retries=0)


def test_typed_objects_from_both_engine_cores(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Pet, n=4, temperature=1, max_tokens=60, seed=3
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 4
    assert all(isinstance(choice.message.parsed, Pet) for choice in answer.choices)


def test_a_stream_gives_the_same_object(client: OpenAI) -> None:
    schema = Pet.model_json_schema()
    fields = {
        "model": MODEL,
        "messages": ASK,
        "response_format": {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema}},
        "max_tokens": 60,
        "seed": 5,
    }
    whole = client.chat.completions.create(**fields)
    chunks = client.chat.completions.create(**fields, stream=True)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_compiled_is_a_400(client: OpenAI, stream: bool) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", stream=stream, extra_body={"guided_regex": "[a"})
    assert caught.value.param == "guided_regex"
    assert "Unclosed" in caught.value.message


def test_torch_is_in_no_process(client: OpenAI, demo_cluster: ShoalProcess) -> None:
    client.completions.create(model=MODEL, prompt="a", max_tokens=4, extra_body={"guided_regex": "[0-9]{3}"})
    processes = psutil.Process(demo_cluster.process.pid).children(recursive=True)
    names = [" ".join(process.cmdline()) for process in processes]
    assert any("grammar_prober" in name for name in names)
    mapped = {mapping.path for process in processes for mapping in process.memory_maps()}
    assert any("xgrammar" in path for path in mapped)
    assert not [path for path in mapped if "torch" in path or "transformers" in path]
