"""The demo model, fetched for real: it encodes as SmolLM2 does, and knows the capital of France.

smollm2_encodings.json was made with another implementation of BPE (tiktoken) from the same vocabulary, with the digits
cut out beforehand; bytes that the vocabulary lacks (some control characters) are left out, as Hugging Face does.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from tokenizers import Tokenizer

from deploy.cache import cache_directory
from deploy.demo_model import Weights, ensure_demo_model

pytestmark = pytest.mark.model

REFERENCES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("smollm2_encodings.json").read_text())


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_demo_model(cache_directory(), Weights.FLOAT32)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: ascii(reference["text"][:24]))
def test_text_is_encoded_as_by_another_implementation(tokenizer: Tokenizer, reference: dict[str, Any]) -> None:
    assert tokenizer.encode(reference["text"]).ids == reference["ids"]


def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer) -> None:
    for text in (reference["text"] for reference in REFERENCES):
        if "\x04" not in text:
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def capital_of_france(folder: Path) -> str:
    loaded: Any = mlx_lm.load(str(folder))
    model, tokenizer = loaded
    model.set_dtype(mx.float32)  # a CPU takes minutes for the same in float16
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )
    return str(mlx_lm.generate(model, tokenizer, prompt, max_tokens=12))


def test_greedy_answer_names_paris(folder: Path) -> None:
    assert "Paris" in capital_of_france(folder)


def test_quantised_form_for_metal_answers_as_well() -> None:
    """On a CPU; that Metal computes the same is not tested here."""
    assert "Paris" in capital_of_france(ensure_demo_model(cache_directory(), Weights.QUANTISED))
