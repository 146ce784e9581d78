from pathlib import Path

import pytest
from tiny_models import write_json

from engine_core.device import ModelRefused
from engine_core.model_folder import ModelConfig, check_model_folder, parse_json, read_json


def test_a_complete_folder_passes_and_each_missing_file_is_named(tmp_path: Path) -> None:
    files = ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    for file in files:
        (tmp_path / file).write_text("{}")
    check_model_folder(tmp_path)
    for file in files:
        (tmp_path / file).rename(tmp_path / "aside")
        with pytest.raises(ModelRefused, match=file.replace("-00001-of-00002", r"\*")):
            check_model_folder(tmp_path)
        (tmp_path / "aside").rename(tmp_path / file)


def test_a_path_without_a_folder_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="no such directory"):
        check_model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "length", "eos"),
    [
        ('{"max_position_embeddings": 8192, "eos_token_id": 2}', 8192, {2}),
        ('{"n_positions": 1024, "eos_token_id": [5, 6]}', 1024, {5, 6}),
        ('{"eos_token_id": null}', None, set()),
        (
            '{"eos_token_id": 1, "text_config": {"max_position_embeddings": 4096, "eos_token_id": [1, 106]}}',
            4096,
            {1, 106},
        ),
        ('{"rope_scaling": {"factor": {"__float__": "Infinity"}}, "seq_length": 77}', 77, set()),
    ],
)
def test_limits_and_ends_are_found_in_all_their_places(text: str, length: int | None, eos: set[int]) -> None:
    config = parse_json(text, ModelConfig, "config.json")
    assert (config.context_length, config.eos_token_ids) == (length, eos)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": "many"}')
    with pytest.raises(ModelRefused, match=r"config.json: .*max_position_embeddings"):
        read_json(tmp_path / "config.json", ModelConfig)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelRefused, match=r"config\.json"):
        read_json(tmp_path / "config.json", ModelConfig)


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "config.json", ModelConfig) == ModelConfig()
    write_json(tmp_path / "config.json", {"n_ctx": 3})
    assert read_json(tmp_path / "config.json", ModelConfig).context_length == 3
