from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_json

from engine_core.device import ModelRefused
from engine_core.model_card import UNSTATED_CONTEXT_LENGTH, read_model_card
from protocol.card import GenerationDefaults, ModelCard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "config.json", {"max_position_embeddings": 4096, "eos_token_id": 2})
    write_json(
        tmp_path / "tokenizer.json",
        {"added_tokens": [{"id": 7, "content": "<|end|>", "special": True}, {"id": 8, "content": "<s>"}]},
    )
    return tmp_path


def card_of(folder: Path, max_model_len: int | None = None) -> ModelCard:
    return read_model_card(folder, "model", 100, max_model_len)


def test_the_least_folder_gives_a_card(folder: Path) -> None:
    card = card_of(folder)
    assert (card.name, card.vocab_size, card.max_model_len, card.eos_token_ids) == ("model", 100, 4096, (2,))
    assert card.tokenizer_json == (folder / "tokenizer.json").read_text()
    assert card.chat_template is None
    assert card.special_tokens == {}
    assert card.adds_special_tokens
    assert card.defaults == GenerationDefaults()
    assert card.created == int((folder / "config.json").stat().st_mtime)


def test_end_of_sequence_ids_are_united_from_all_files(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 5]})
    write_json(folder / "tokenizer_config.json", {"eos_token": {"content": "<|end|>", "lstrip": False}})
    assert card_of(folder).eos_token_ids == (2, 5, 7)


def test_special_tokens_come_in_all_forms(folder: Path) -> None:
    write_json(folder / "special_tokens_map.json", {"bos_token": "<old>", "unk_token": {"content": "<unk>"}})
    write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": "<s>",
            "pad_token": None,
            "add_bos_token": True,
            "image_token": {"id": 5},
            "model_max_length": 1e30,
        },
    )
    assert card_of(folder).special_tokens == {"bos_token": "<s>", "unk_token": "<unk>"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A"),
        ({"chat_template.json": {"chat_template": "C"}, "tokenizer_config.json": {"chat_template": "B"}}, "C"),
        ({"tokenizer_config.json": {"chat_template": "B"}}, "B"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "T"}]}}, None),
    ],
)
def test_the_chat_template_is_found_in_all_its_places(
    folder: Path, files: dict[str, Any], expected: str | None
) -> None:
    for name, content in files.items():
        (folder / name).write_text(content) if isinstance(content, str) else write_json(folder / name, content)
    assert card_of(folder).chat_template == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, True),
        ({"add_bos_token": None}, True),
        ({"add_bos_token": True}, True),
        ({"add_bos_token": False}, False),
        ({"add_bos_token": False, "add_eos_token": True}, True),
    ],
)
def test_plain_text_gets_the_tokenizers_own_tokens_unless_switched_off(
    folder: Path, config: dict[str, Any], expected: bool
) -> None:
    write_json(folder / "tokenizer_config.json", config)
    assert card_of(folder).adds_special_tokens is expected


def test_sampling_defaults_are_those_of_the_models_makers(folder: Path) -> None:
    write_json(
        folder / "generation_config.json",
        {"temperature": 0.6, "top_p": 1, "top_k": 20, "min_p": None, "repetition_penalty": 1.05, "max_new_tokens": 9},
    )
    assert card_of(folder).defaults == GenerationDefaults(0.6, 1.0, 20, None, 1.05, 9)


def test_the_length_may_be_lowered_but_not_raised(folder: Path) -> None:
    assert card_of(folder, 1000).max_model_len == 1000
    assert card_of(folder, 4096).max_model_len == 4096
    with pytest.raises(ModelRefused, match=r"4097 .* 4096 tokens"):
        card_of(folder, 4097)


def test_a_model_that_states_no_length_takes_the_configured_one(folder: Path) -> None:
    write_json(folder / "config.json", {"model_type": "mamba"})
    assert card_of(folder).max_model_len == UNSTATED_CONTEXT_LENGTH
    assert card_of(folder, 10**6).max_model_len == 10**6


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("generation_config.json", '{"top_k": "all"}'),
        ("tokenizer.json", '{"added_tokens": 5}'),
        ("tokenizer_config.json", "{"),
    ],
)
def test_a_wrong_file_is_named(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(ModelRefused, match=file):
        card_of(folder)
