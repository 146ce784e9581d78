"""Weights come out of a GGUF file under Hugging Face names, in Hugging Face order, and whole."""

from pathlib import Path

import mlx.core as mx
import pytest
from tiny_gguf import hub_weights, write_tiny_gguf

from deploy.gguf import GROUP_SIZE, GgufError, GgufFile, bits_of, dequantised


def test_weights_are_those_that_went_in_query_and_key_rows_included(tmp_path: Path) -> None:
    found = GgufFile(write_tiny_gguf(tmp_path / "m.gguf")).quantised_weights()
    expected = hub_weights()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert mx.array_equal(found[name], weight), name


def test_metadata_of_each_kind(tmp_path: Path) -> None:
    gguf = GgufFile(write_tiny_gguf(tmp_path / "m.gguf"))
    assert gguf.text("tokenizer.ggml.model") == "gpt2"
    assert gguf.texts("tokenizer.ggml.merges") == ["a b", "1 1"]
    assert gguf.integer("llama.block_count") == 1
    assert gguf.integers("tokenizer.ggml.token_type") == [3, 3, 3, 1, 1, 1, 1, 1, 1]
    assert gguf.number("llama.rope.freq_base") == 10000.0


def test_what_is_missing_or_foreign_is_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"llama.vocab_size"):
        GgufFile(write_tiny_gguf(tmp_path / "a.gguf", {"llama.vocab_size": None})).integer("llama.vocab_size")
    with pytest.raises(GgufError, match="'qwen2'"):
        GgufFile(write_tiny_gguf(tmp_path / "b.gguf", {"general.architecture": "qwen2"}))
    with pytest.raises(GgufError, match=r"blk.0.ffn_gate_inp.weight"):
        GgufFile(write_tiny_gguf(tmp_path / "c.gguf", extra_tensors=("blk.0.ffn_gate_inp.weight",))).quantised_weights()


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_matrices_are_multiplied_out_and_others_cast(bits: int) -> None:
    matrix = mx.random.normal((8, 64))
    packed, scales, biases = mx.quantize(matrix, group_size=GROUP_SIZE, bits=bits)
    weights = {"m.weight": packed, "m.scales": scales, "m.biases": biases, "norm.weight": mx.ones((4,), mx.float16)}
    assert bits_of(packed, scales) == bits
    plain = dequantised(weights, mx.float32)
    assert plain.keys() == {"m.weight", "norm.weight"}
    assert all(array.dtype == mx.float32 for array in plain.values())
    step = float(mx.abs(scales).max().item())
    assert float(mx.abs(plain["m.weight"] - matrix).max().item()) <= step
