"""Makes the model card, which is all that API servers learn of a model, from a model folder."""

import logging
from pathlib import Path

import msgspec

from engine_core.device import ModelRefused
from engine_core.model_folder import (
    BosSetting,
    GenerationConfig,
    ModelConfig,
    TemplateFile,
    TokenizerFile,
    as_ids,
    parse_json,
    read_json,
    read_text,
)
from protocol.card import GenerationDefaults, ModelCard

logger = logging.getLogger("shoal.engine_core.model")

UNSTATED_CONTEXT_LENGTH = 32_768
"""max_model_len of a model that states no limit (recurrent ones), unless the configuration gives one."""


def read_model_card(folder: Path, name: str, vocab_size: int, max_model_len: int | None) -> ModelCard:
    """The card of the model in `folder`, which `check_model_folder` has passed.

    `vocab_size` is that of the loaded model; `max_model_len` the configured one. Raises ModelRefused.
    """
    config = read_json(folder / "config.json", ModelConfig)
    generation = read_json(folder / "generation_config.json", GenerationConfig)
    tokenizer_json = read_text(folder / "tokenizer.json")
    special_tokens = _special_tokens(folder)
    eos_ids = config.eos_token_ids | as_ids(generation.eos_token_id)
    eos_ids |= _ids_of(special_tokens.get("eos_token"), tokenizer_json)
    return ModelCard(
        name=name,
        max_model_len=_model_length(config.context_length, max_model_len),
        vocab_size=vocab_size,
        tokenizer_json=tokenizer_json,
        eos_token_ids=tuple(sorted(eos_ids)),
        chat_template=_chat_template(folder),
        special_tokens=special_tokens,
        adds_special_tokens=_adds_special_tokens(folder),
        defaults=_defaults(generation),
        created=int((folder / "config.json").stat().st_mtime),
    )


def _model_length(stated: int | None, configured: int | None) -> int:
    if stated is None:
        length = configured or UNSTATED_CONTEXT_LENGTH
        logger.info("the model states no context length: max_model_len is %d", length)
        return length
    if configured is not None and configured > stated:
        raise ModelRefused(f"max_model_len {configured} is more than the model's context length of {stated} tokens")
    return configured or stated


def _special_tokens(folder: Path) -> dict[str, str]:
    """Name to text of bos_token and the like; tokenizer_config.json overrides special_tokens_map.json."""
    tokens = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(folder / file, dict[str, msgspec.Raw]).items():
            text = _token_text(value) if key.endswith("_token") else None
            if text is not None:
                tokens[key] = text
    return tokens


class _TokenObject(msgspec.Struct, frozen=True):
    content: str


def _token_text(value: msgspec.Raw) -> str | None:
    """`"<s>"` and `{"content": "<s>", ...}` are tokens; null and the switches (add_bos_token: true) are not."""
    try:
        token = msgspec.json.decode(value, type=str | _TokenObject)
    except msgspec.ValidationError:
        return None
    return token.content if isinstance(token, _TokenObject) else token


def _ids_of(token: str | None, tokenizer_json: str) -> set[int]:
    tokenizer = parse_json(tokenizer_json, TokenizerFile, "tokenizer.json")
    return {added.id for added in tokenizer.added_tokens if added.content == token}


def _chat_template(folder: Path) -> str | None:
    """Where there are several places or templates: the file of its own first, the template named "default"."""
    if (folder / "chat_template.jinja").is_file():
        return read_text(folder / "chat_template.jinja")
    for file in ("chat_template.json", "tokenizer_config.json"):
        template = read_json(folder / file, TemplateFile).chat_template
        if isinstance(template, str):
            return template
        for named in template or ():
            if named.name == "default":
                return named.template
    return None


def _adds_special_tokens(folder: Path) -> bool:
    setting = read_json(folder / "tokenizer_config.json", BosSetting)
    return setting.add_bos_token is not False or setting.add_eos_token is True


def _defaults(generation: GenerationConfig) -> GenerationDefaults:
    return GenerationDefaults(
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        min_p=generation.min_p,
        repetition_penalty=generation.repetition_penalty,
        max_tokens=generation.max_new_tokens,
    )
