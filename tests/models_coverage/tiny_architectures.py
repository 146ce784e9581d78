"""Configurations of a few thousand weights for the architectures of mlx-lm, and the models built of them.

mlx-lm's argument classes take what they know of a configuration and leave the rest, so one set of sizes fits most.
"""

import importlib
from typing import Any

import mlx.core as mx

VOCAB = 64
WINDOW = 8
"""Tokens of each sliding window: sequences of the test are longer."""
LAYERS = 4

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "num_vocab": VOCAB,
    "hidden_size": 32,
    "n_embd": 32,
    "hidden_dim": 32,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "n_layer": LAYERS,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "n_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "n_inner": 48,
    "rms_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layer_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_ctx": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    # sliding windows
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "attention_window_size": WINDOW,
    "window_size": WINDOW,
    "sliding_window_pattern": 2,
    # mixtures of experts
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "num_shared_expert": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "mlp_only_layers": [],
    "routed_scaling_factor": 1.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    # multi-head latent attention
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "index_topk": WINDOW,
    # recurrent layers
    "state_size": 4,
    "ssm_state_size": 4,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "time_step_limit": [0.001, 10.0],
    "n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_d_state": 4,
    "mamba_expand": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 64,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "layer_group_size": 2,
    "group_norm_size": 1,
    "conv_bias": False,
    "conv_L_cache": 3,
    "conv1d_width": 4,
    # scales
    "logits_scaling": 1.0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "dim_model_base": 32,
    "scale_depth": 1.4,
    "scale_emb": 1.0,
}

_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2}

_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 1.0}
_LLAMA4_SCALING = {
    "rope_theta": 10000.0,
    "rope_type": "default",
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16,
}
_KIMI_LINEAR = {
    "linear_attn_config": {
        "kda_layers": [1, 3],
        "full_attn_layers": [2, 4],
        "num_heads": 4,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
    },
    "num_experts_per_token": 2,
}
_LONGCAT = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16,
    "zero_expert_num": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "ngram_vocab_size_ratio": 2,
    "emb_neighbor_num": 3,
    "emb_split_num": 2,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 1},
    "afmoe": _WINDOWS,
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [1, 3], "conv_window": 2},
    "dbrx": {
        "d_model": 32,
        "n_layers": LAYERS,
        "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LG"},
    "exaone_moe": {**_WINDOWS, "is_moe_layer": [False, True] * 2},
    "deepseek_v2": {"rope_scaling": _YARN},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "full_attention", "conv_mixer"]},
    "gemma3n": {
        **_WINDOWS,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "rope_local_base_freq": 1000.0,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "altup_coef_clip": 10.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 4,
    },
    "gemma4_text": {
        **_WINDOWS,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 16,
    },
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "shared_intermediate_size": 16,
        "rope_parameters": {"rope_theta": 10000.0},
    },
    "hunyuan": {
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 2.0},
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "moe_topk": 2,
    },
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_dt_rank": 4,
    },
    "kimi_k3": _KIMI_LINEAR,
    "kimi_linear": {**_KIMI_LINEAR, "model_max_length": 512},
    "lfm2": {
        "block_dim": 32,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"] * 2,
    },
    "lfm2_moe": {"use_expert_bias": True, "layer_types": ["conv", "full_attention"] * 2},
    "lille-130m": {"block_size": 512, "n_embd": 96},
    "llama4_text": {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0] * 2},
    "llama4": {
        "num_experts_per_tok": 1,
        "attention_chunk_size": WINDOW,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 48,
        "rope_scaling": None,
    },
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": _LONGCAT,
    "mellum": {
        **_WINDOWS,
        "rope_parameters": {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in _WINDOWS["layer_types"]},
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0] * 2,
        "moe_layer_freq": [0, 1] * 2,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 1000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "minicpm3": {
        "rope_scaling": {"original_max_position_embeddings": 512, "short_factor": [1.0] * 2, "long_factor": [1.0] * 2}
    },
    "minimax": {"shared_intermediate_size": 16, "rotary_dim": 4},
    "minimax_m3_vl": {
        "moe_layer_freq": [0, 1] * 2,
        "dense_intermediate_size": 48,
        "shared_intermediate_size": 16,
        "rotary_dim": 4,
        "sparse_attention_freq": [0, 1] * 2,
        "index_block_size": 4,
        "index_topk_blocks": 2,
        "swiglu_limit": 7.0,
    },
    "ministral3": {**_WINDOWS, "rope_parameters": _LLAMA4_SCALING},
    "mistral4": {"rope_parameters": _LLAMA4_SCALING},
    "muse_spark": {
        **_WINDOWS,
        "post_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0},
        "layer_rope_theta": [10000.0, 0] * 2,
        "final_logit_softcapping": 30.0,
        "output_multiplier": 1.0,
        "moe_hidden_size": 16,
        "num_shared_experts": 0,
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}},
        ]
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "M", "-"]},
    "olmo_hybrid": {"linear_allow_neg_eigval": True, "layer_types": ["linear_attention", "full_attention"] * 2},
    "openelm": {
        "num_transformer_layers": LAYERS,
        "model_dim": 32,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4] * LAYERS,
        "num_kv_heads": [2, 2, 4, 4],
        "ffn_multipliers": [1.0] * LAYERS,
    },
    "phixtral": {"model_dim": 32, "rotary_dim": 4},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": 8},
    "recurrent_gemma": {
        "logits_soft_cap": 30.0,
        "block_types": ["recurrent", "attention"],
        "num_key_value_heads": 1,
    },
    "rwkv7": {"a_low_rank_dim": 4, "v_low_rank_dim": 4, "gate_low_rank_dim": 4, "decay_low_rank_dim": 4},
    "spark2_5": {
        **_WINDOWS,
        "rope_parameters": {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in _WINDOWS["layer_types"]},
    },
    "stablelm": {"use_qkv_bias": True},
    "step3p5": {
        **_WINDOWS,
        "num_attention_groups": 2,
        "moe_top_k": 2,
        "share_expert_dim": 16,
        "moe_layers_enum": "2,3",
    },
}

NESTED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl",
    "mistral3": "ministral3",
    "muse_spark": "muse_spark",
    "pixtral": "llama",
    "prism_hadamard_qwen35": "qwen3_5",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Models whose text part has its configuration in text_config: and whose configuration that is."""


def config_of(architecture: str) -> dict[str, Any]:
    """What config.json would say of the tiny model."""
    if architecture in NESTED:
        text = {"model_type": NESTED[architecture], **SIZES}
        text |= OVERRIDES.get(NESTED[architecture], {}) | OVERRIDES.get(architecture, {})
        return {"model_type": architecture, "vocab_size": VOCAB, "text_config": text}
    return {"model_type": architecture, **SIZES, **OVERRIDES.get(architecture, {})}


def tiny_model(architecture: str) -> Any:
    """A model in float32, the same each time; weights are spread out, so that likeliest tokens stand out."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict(config_of(architecture)))
    model.update(_spread(model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def _spread(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _spread(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_spread(value) for value in tree]
    return (
        tree + mx.random.normal(tree.shape, tree.dtype, scale=0.15) if mx.issubdtype(tree.dtype, mx.floating) else tree
    )
