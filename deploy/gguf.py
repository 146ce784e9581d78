"""Reads a GGUF file of a llama-architecture model: its metadata, and its weights under Hugging Face names.

MLX does the parsing and hands Q4_1 and Q8_0 matrices out as its own quantised triples (weight, scales, biases,
groups of 32). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx

GROUP_SIZE = 32
"""Weights that share one scale and bias, in every quantisation that MLX reads from GGUF."""

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_up": "mlp.up_proj",
}
_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<part>weight|scales|biases)")


class GgufError(ValueError):
    """The file does not hold what a llama-architecture GGUF file must hold."""


class GgufFile:
    """One GGUF file in memory; the accessors raise GgufError for keys that are not there."""

    def __init__(self, path: Path) -> None:
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
        self._tensors: dict[str, Any] = loaded[0]
        self._metadata: dict[str, Any] = loaded[1]
        if self.text("general.architecture") != "llama":
            raise GgufError(f"{path.name}: architecture {self.text('general.architecture')!r}, not 'llama'")

    def text(self, key: str) -> str:
        """A string of the metadata."""
        return str(self._value(key))

    def texts(self, key: str) -> list[str]:
        """A list of strings of the metadata."""
        return list(self._value(key))

    def number(self, key: str) -> float:
        """A number of the metadata."""
        return float(self._value(key).item())

    def integer(self, key: str) -> int:
        """A whole number of the metadata."""
        return int(self._value(key).item())

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers of the metadata."""
        return [int(value) for value in self._value(key).tolist()]

    def _value(self, key: str) -> Any:
        if key not in self._metadata:
            raise GgufError(f"GGUF metadata has no {key!r}")
        return self._metadata[key]

    def quantised_weights(self) -> dict[str, Any]:
        """Name to array as mlx-lm's quantised modules want them: packed weights with their scales and biases.

        Rows of the query and key projections come back in Hugging Face order, see `_head_rows_in_halves`.
        """
        heads = {
            "attn_q": self.integer("llama.attention.head_count"),
            "attn_k": self.integer("llama.attention.head_count_kv"),
        }
        weights = {}
        for name, array in self._tensors.items():
            layer, module, part = _parse_tensor_name(name)
            if module in heads:
                array = _head_rows_in_halves(array, heads[module])
            prefix = f"model.layers.{layer}." if layer is not None else ""
            weights[f"{prefix}{_NAMES[module]}.{part}"] = array
        return weights


def _parse_tensor_name(name: str) -> tuple[str | None, str, str]:
    match = _TENSOR.fullmatch(name)
    if match is None or match["module"] not in _NAMES:
        raise GgufError(f"unknown GGUF tensor {name!r}")
    return match["layer"], match["module"], match["part"]


def _head_rows_in_halves(array: Any, heads: int) -> Any:
    """Undoes GGUF's order of the rows of a llama head.

    GGUF interleaves the two halves of each head, so that rotary pairs are neighbours; Hugging Face and mlx-lm
    expect row i of a head to be rotated with row i + half. Packed weights, scales and biases all go along rows, so
    a quantised matrix is reordered like a plain one.
    """
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(array.shape)


def dequantised(weights: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The same weights with every quantised matrix multiplied out, all of them in `dtype`."""
    plain = {}
    for name, array in weights.items():
        module, _, part = name.rpartition(".")
        if part != "weight":
            continue
        scales, biases = weights.get(f"{module}.scales"), weights.get(f"{module}.biases")
        if scales is not None and biases is not None:
            array = mx.dequantize(array, scales, biases, group_size=GROUP_SIZE, bits=bits_of(array, scales))
        plain[name] = array.astype(dtype)
    return plain


def bits_of(weight: Any, scales: Any) -> int:
    """Bits per weight of a packed matrix (32-bit words, one scale for GROUP_SIZE weights)."""
    return int(weight.shape[-1] * 32 // (scales.shape[-1] * GROUP_SIZE))
