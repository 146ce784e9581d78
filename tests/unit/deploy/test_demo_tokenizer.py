"""The tokenizer files hold what the GGUF file says.

That the real one encodes as it should is in tests/model/test_demo_model.py.
"""

import json
from pathlib import Path

import pytest
from tiny_gguf import TOKENS, write_tiny_gguf
from tokenizers import Tokenizer

from deploy.demo_tokenizer import tokenizer_config_json, tokenizer_json
from deploy.gguf import GgufError, GgufFile


def test_tokenizer_splits_digits_merges_pairs_and_knows_special_tokens(tmp_path: Path) -> None:
    content = tokenizer_json(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")))
    tokenizer = Tokenizer.from_str(json.dumps(content))
    assert tokenizer.encode("ab 11<|im_end|>ba").ids == [5, 7, 6, 6, 2, 4, 3]
    assert tokenizer.get_vocab() == {token: token_id for token_id, token in enumerate(TOKENS)}
    assert tokenizer.decode([5, 2, 7, 6], skip_special_tokens=True) == "ab 1"


def test_tokenizer_config_names_special_tokens_and_template(tmp_path: Path) -> None:
    config = tokenizer_config_json(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")))
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert (config["unk_token"], config["pad_token"]) == ("<|endoftext|>", "<|im_end|>")
    assert config["chat_template"] == "{{ messages[0]['content'] }}"
    assert config["model_max_length"] == 128


def test_another_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    gguf = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", {"tokenizer.ggml.pre": "llama-bpe"}))
    with pytest.raises(GgufError, match="llama-bpe"):
        tokenizer_json(gguf)
