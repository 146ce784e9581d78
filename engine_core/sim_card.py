"""The model card of a simulated model: a byte-level tokenizer and a ChatML template."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from protocol.card import ModelCard

IM_END, IM_START, END_OF_TEXT = 256, 257, 258
_SPECIAL_TOKENS = {IM_END: "<|im_end|>", IM_START: "<|im_start|>", END_OF_TEXT: "<|endoftext|>"}

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sim_card(name: str, max_model_len: int, vocab_size: int) -> ModelCard:
    """Token id b is the byte b, for b below 256; any UTF-8 text survives encoding and decoding."""
    return ModelCard(
        name=name,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        tokenizer_json=_byte_tokenizer().to_str(),
        eos_token_ids=(IM_END,),
        chat_template=_CHAT_TEMPLATE,
        special_tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        adds_special_tokens=False,
    )


def _byte_tokenizer() -> Tokenizer:
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for _, text in sorted(_SPECIAL_TOKENS.items())]
    )
    return tokenizer


def _byte_symbols() -> list[str]:
    """The character that byte-level tokenizers write for each byte.

    Printable Latin-1 characters stand for themselves, the other bytes for the characters from U+0100 on, in order
    (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
