"""The model card: all that an API server must know of a model, sent by the engine cores that hold it.

An API server has no model folder. It gets the card through the coordinator, once per content hash.
"""

import hashlib
import zlib

import msgspec

from protocol.errors import ProtocolError

MAX_CARD_BYTES = 256 * 1024 * 1024
"""Limit of an unpacked card; the largest tokenizers known in 2026 have about 35 MB."""


class GenerationDefaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling defaults of a model's generation_config.json; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokenizer, chat template, limits and defaults of one model."""

    name: str
    max_model_len: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    """Rows of the output layer; token ids at or above it are invalid."""
    tokenizer_json: str
    """The content of tokenizer.json (Hugging Face tokenizers)."""
    eos_token_ids: tuple[int, ...]
    chat_template: str | None = None
    """Jinja source; None for a model without one (chat requests are refused)."""
    special_tokens: dict[str, str] = {}
    """What a template may name: bos_token, eos_token, pad_token, unk_token, ..."""
    adds_special_tokens: bool = True
    """Whether plain-text prompts get the tokenizer's own prefix and suffix tokens (BOS and the like)."""
    defaults: GenerationDefaults = GenerationDefaults()
    created: int = 0
    """Unix time of the model files, seconds."""


_decoder = msgspec.msgpack.Decoder(ModelCard)


def pack_card(card: ModelCard) -> tuple[str, bytes]:
    """Returns (content hash, compressed bytes). The hash is SHA-256 over the uncompressed encoding, hexadecimal."""
    raw = msgspec.msgpack.encode(card)
    return hashlib.sha256(raw).hexdigest(), zlib.compress(raw, 6)


def unpack_card(packed: bytes | memoryview, content_hash: str) -> ModelCard:
    """The card in `packed`. Raises ProtocolError when it is damaged, too large or not what `content_hash` names."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, MAX_CARD_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"model card cannot be decompressed: {error}") from error
    if not inflater.eof:
        raise ProtocolError(f"model card is cut off or larger than {MAX_CARD_BYTES} bytes")
    if hashlib.sha256(raw).hexdigest() != content_hash:
        raise ProtocolError("model card does not match its content hash")
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"model card: {error}") from error
