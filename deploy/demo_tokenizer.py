"""Writes the Hugging Face tokenizer files of SmolLM2 from the vocabulary and merges in its GGUF file."""

from collections.abc import Sequence
from typing import Any

from deploy.gguf import GgufError, GgufFile

_CONTROL = 3
"""GGUF token type of special tokens (llama.h: LLAMA_TOKEN_TYPE_CONTROL)."""


def tokenizer_json(gguf: GgufFile) -> dict[str, Any]:
    """Content of tokenizer.json: byte-level BPE; each digit stands alone, the rest is split by GPT-2's pattern.

    Raises GgufError for another kind of tokenizer.
    """
    kind = gguf.text("tokenizer.ggml.model"), gguf.text("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise GgufError(f"tokenizer {kind[0]!r} with pre-tokenizer {kind[1]!r} is not SmolLM's")
    tokens = gguf.texts("tokenizer.ggml.tokens")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _special_tokens(tokens, gguf.integers("tokenizer.ggml.token_type")),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            # Pairs as strings: read as arrays, they cost every process that loads this tokenizer 20 MB more.
            "merges": gguf.texts("tokenizer.ggml.merges"),
        },
    }


def _special_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [
        {"id": token_id, "content": tokens[token_id], **flags}
        for token_id, token_type in enumerate(types)
        if token_type == _CONTROL
    ]


def tokenizer_config_json(gguf: GgufFile) -> dict[str, Any]:
    """Content of tokenizer_config.json: special tokens, chat template, context length."""
    tokens = gguf.texts("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[gguf.integer("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[gguf.integer("tokenizer.ggml.eos_token_id")],
        "unk_token": tokens[gguf.integer("tokenizer.ggml.unknown_token_id")],
        "pad_token": tokens[gguf.integer("tokenizer.ggml.padding_token_id")],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.integer("llama.context_length"),
        "chat_template": gguf.text("tokenizer.chat_template"),
    }
