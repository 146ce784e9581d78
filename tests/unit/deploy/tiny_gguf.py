"""A GGUF file of a llama model too small to say anything, written with MLX."""

from pathlib import Path
from typing import Any

import mlx.core as mx

HIDDEN = 24
HEADS = 4  # of 6 dimensions: with 4, the two orders of rows would be the same
KV_HEADS = 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "Ġ", "11"]


def half_rows_interleaved(weight: Any, heads: int) -> Any:
    """What the conversion from Hugging Face to GGUF does with query and key rows."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def metadata() -> dict[str, Any]:
    """The keys that Shoal reads."""
    return {
        "general.architecture": "llama",
        "llama.attention.head_count": mx.array(HEADS, mx.uint32),
        "llama.attention.head_count_kv": mx.array(KV_HEADS, mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5, mx.float32),
        "llama.block_count": mx.array(1, mx.uint32),
        "llama.context_length": mx.array(128, mx.uint32),
        "llama.embedding_length": mx.array(HIDDEN, mx.uint32),
        "llama.feed_forward_length": mx.array(32, mx.uint32),
        "llama.rope.freq_base": mx.array(10000.0, mx.float32),
        "llama.vocab_size": mx.array(len(TOKENS), mx.uint32),
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
        "tokenizer.ggml.bos_token_id": mx.array(1, mx.uint32),
        "tokenizer.ggml.eos_token_id": mx.array(2, mx.uint32),
        "tokenizer.ggml.merges": ["a b", "1 1"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.padding_token_id": mx.array(2, mx.uint32),
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.token_type": mx.array([3, 3, 3, 1, 1, 1, 1, 1, 1], mx.int32),
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.unknown_token_id": mx.array(0, mx.uint32),
    }


def hub_weights() -> dict[str, Any]:
    """Weights under Hugging Face names, rows in Hugging Face order."""
    mx.random.seed(3)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens": (len(TOKENS), HIDDEN),
        "model.norm": (HIDDEN,),
        f"{layer}.input_layernorm": (HIDDEN,),
        f"{layer}.post_attention_layernorm": (HIDDEN,),
        f"{layer}.self_attn.q_proj": (HIDDEN, HIDDEN),
        f"{layer}.self_attn.k_proj": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        f"{layer}.self_attn.v_proj": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        f"{layer}.self_attn.o_proj": (HIDDEN, HIDDEN),
        f"{layer}.mlp.gate_proj": (32, HIDDEN),
        f"{layer}.mlp.up_proj": (32, HIDDEN),
        f"{layer}.mlp.down_proj": (HIDDEN, 32),
    }
    return {f"{name}.weight": mx.random.normal(shape) for name, shape in shapes.items()}


_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def write_tiny_gguf(path: Path, changes: dict[str, Any] | None = None, extra_tensors: tuple[str, ...] = ()) -> Path:
    """Writes the file and returns its path. `changes` replaces metadata; None for a key removes it."""
    weights = {_GGUF_NAMES[name]: weight for name, weight in hub_weights().items()}
    for module, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
        weights[f"blk.0.{module}.weight"] = half_rows_interleaved(weights[f"blk.0.{module}.weight"], heads)
    weights |= {name: mx.zeros((4,)) for name in extra_tensors}
    changed = metadata() | (changes or {})
    mx.save_gguf(str(path), weights, {key: value for key, value in changed.items() if value is not None})
    return path
