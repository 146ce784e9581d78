"""The files of a model folder in Hugging Face layout, read and typed; what Shoal has no use for is skipped."""

from pathlib import Path
from typing import TypeVar

import msgspec

from engine_core.device import ModelRefused


class ModelConfig(msgspec.Struct, frozen=True):
    """config.json, as far as it matters outside of mlx-lm."""

    max_position_embeddings: int | None = None
    n_positions: int | None = None
    max_sequence_length: int | None = None
    max_seq_len: int | None = None
    seq_length: int | None = None
    n_ctx: int | None = None
    eos_token_id: int | list[int] | None = None
    text_config: "ModelConfig | None" = None
    """The language model's part in the config of a multimodal model."""

    @property
    def context_length(self) -> int | None:
        """Most tokens that the model was made for, under whichever name; None when it states no limit."""
        own = (
            self.max_position_embeddings
            or self.n_positions
            or self.max_sequence_length
            or self.max_seq_len
            or self.seq_length
            or self.n_ctx
        )
        return own or (self.text_config.context_length if self.text_config else None)

    @property
    def eos_token_ids(self) -> set[int]:
        """End-of-sequence tokens, the text model's too."""
        nested = self.text_config.eos_token_ids if self.text_config else set()
        return nested | as_ids(self.eos_token_id)


class GenerationConfig(msgspec.Struct, frozen=True):
    """generation_config.json: sampling defaults of the model's makers."""

    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


class NamedTemplate(msgspec.Struct, frozen=True):
    """One of several chat templates."""

    name: str
    template: str


class TemplateFile(msgspec.Struct, frozen=True):
    """chat_template.json, and the part of tokenizer_config.json that says the same."""

    chat_template: str | list[NamedTemplate] | None = None


class BosSetting(msgspec.Struct, frozen=True):
    """The part of tokenizer_config.json about the tokens put around plain text."""

    add_bos_token: bool | None = None
    add_eos_token: bool | None = None


class AddedToken(msgspec.Struct, frozen=True):
    """A token of tokenizer.json outside of the learnt vocabulary; special tokens are among these."""

    id: int
    content: str


class TokenizerFile(msgspec.Struct, frozen=True):
    """tokenizer.json, as far as the engine core looks into it."""

    added_tokens: list[AddedToken] = []


T = TypeVar("T")


def as_ids(ids: int | list[int] | None) -> set[int]:
    """One token id, several or none as a set."""
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else set(ids)


def check_model_folder(folder: Path) -> None:
    """Raises ModelRefused unless `folder` has what every model folder must have."""
    if not folder.is_dir():
        raise ModelRefused(f"{folder} is not a model folder: there is no such directory")
    for name, purpose in (("config.json", "the architecture"), ("tokenizer.json", "the tokenizer")):
        if not (folder / name).is_file():
            raise ModelRefused(f"{folder} has no {name} ({purpose}); Shoal needs the Hugging Face layout")
    if not any(folder.glob("model*.safetensors")):
        raise ModelRefused(f"{folder} has no weights (model*.safetensors)")


def read_text(path: Path) -> str:
    """The file's text. Raises ModelRefused when it is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRefused(f"{path.name}: {error}") from error


def read_json(path: Path, kind: type[T]) -> T:
    """The JSON file as `kind`; a file that is not there reads as `{}`. Raises ModelRefused when it is wrong."""
    text = read_text(path) if path.is_file() else "{}"
    return parse_json(text, kind, path.name)


def parse_json(text: str, kind: type[T], name: str) -> T:
    """`text`, from the file `name`, as `kind`. Raises ModelRefused."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ModelRefused(f"{name}: {error}") from error
