"""Models of a few thousand random weights, built on the spot, and mlx-lm's own way to generate with them."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from engine_core.mlx_lm_adapter import make_prompt_cache

VOCAB = 97

_ATTENTION = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_ATTENTION, "tie_word_embeddings": True},
    "qwen2": {**_ATTENTION, "tie_word_embeddings": False},
    "qwen3": {**_ATTENTION, "head_dim": 8, "tie_word_embeddings": True, "rope_theta": 10000.0},
    "gemma3_text": {**_ATTENTION, "head_dim": 8, "sliding_window": 8, "sliding_window_pattern": 2},
    "mamba": {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 4,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    "afm7": {
        "vocab_size": VOCAB,
        "hidden_dim": 32,
        "num_layers": 2,
        "num_kv_reuse_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    "gpt_bigcode": {
        "n_embd": 32,
        "n_layer": 2,
        "n_inner": 48,
        "n_head": 4,
        "n_positions": 256,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCAB,
    },
}
"""By mlx-lm's model type. llama, qwen2 and qwen3 keep plain KV caches; gemma3_text has rings of 8 tokens, mamba a
recurrent state; afm7 has plain caches but takes positions from their length; gpt_bigcode wants them as a number."""


def tiny_model(model_type: str, seed: int = 1, **config: Any) -> Any:
    """A model in float32, the same for the same seed; weights are spread out, so that likeliest tokens stand out."""
    module = importlib.import_module(f"mlx_lm.models.{model_type}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict({"model_type": model_type, **CONFIGS[model_type], **config}))
    model.update(_spread(model.parameters()))
    mx.eval(model.parameters())
    return model


def _spread(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _spread(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_spread(value) for value in tree]
    return tree + mx.random.normal(tree.shape, tree.dtype, scale=0.15)


def write_model_folder(folder: Path, model_type: str = "llama", **config: Any) -> Path:
    """A folder that `open_mlx_device` can load: weights, config.json and a tokenizer of one special token."""
    folder.mkdir()
    weights = dict(tree_flatten(tiny_model(model_type).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    write_json(folder / "config.json", {"model_type": model_type, **CONFIGS[model_type], "eos_token_id": 2, **config})
    write_json(folder / "tokenizer.json", {"added_tokens": [{"id": 3, "content": "</s>"}], "model": {"vocab": {}}})
    write_json(folder / "tokenizer_config.json", {"eos_token": "</s>"})
    return folder


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(content), encoding="utf-8")


def logits_alone(model: Any, token_ids: Sequence[int]) -> mx.array:
    """[len(token_ids), vocabulary] of one plain forward."""
    logits: mx.array = model(mx.array([list(token_ids)]), cache=make_prompt_cache(model))[0]
    return logits


def greedy_alone(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """What mlx-lm's caches give when one sequence runs alone: prompt at once, then token by token."""
    cache = make_prompt_cache(model)
    tokens, fed = [], list(prompt)
    for _ in range(count):
        logits = model(mx.array([fed]), cache=cache)
        tokens.append(int(mx.argmax(logits[0, -1]).item()))
        fed = tokens[-1:]
    return tokens
