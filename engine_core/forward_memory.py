"""What a step takes beside weights and KV cache, measured when the model is loaded."""

from typing import Any

import mlx.core as mx

from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache

MEASURED_TOKENS = 64
"""Tokens of the forward that is measured: 0.15 s of a 135M model on 2 CPU cores. Activations grow with the tokens."""
LOGITS_COPIES = 4
"""Of the logits of all decode rows, in float32: adjusted, weighted, summed up, and as they came."""


def forward_bytes(model: Any, vocab_size: int, max_forward_tokens: int, max_rows: int) -> int:
    """Peak memory of the widest step.

    Where attention is not one kernel (on the CPU, and on Metal for unusual sizes of heads) its scores come on top:
    heads x tokens x context of one layer. They are bounded by what device_memory leaves free.
    """
    measured = _measured_bytes(model)
    return measured * max_forward_tokens // MEASURED_TOKENS + LOGITS_COPIES * 4 * max_rows * vocab_size


def _measured_bytes(model: Any) -> int:
    """Of a forward of MEASURED_TOKENS tokens, whose logits are not wanted, without the cache that it fills."""
    cache = make_prompt_cache(model)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model(mx.zeros((1, MEASURED_TOKENS), mx.int32), cache=cache)
    mx.eval(cache_arrays(cache))
    kept = max(0, mx.get_active_memory() - before)
    return max(0, int(mx.get_peak_memory()) - before - kept)
