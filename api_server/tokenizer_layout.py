"""What a tokenizer.json says about its parts: how tokens become text, and what of a text reaches the vocabulary."""

from typing import Any

import msgspec

NFC_SHRINKAGE = 9
"""Bytes of text for one byte after NFC, at most: a character decomposes to no less than a third of its bytes (U+1FEF to
U+0060), and composing them again shortens them to no less than a third (Unicode Standard Annex 15, section 9)."""

_GROWING_NORMALIZERS = {"Sequence", "NFC", "Prepend"}
"""Those, beside some Replace, that leave nothing out."""
_KEEPING_PRE_TOKENIZERS = {"Sequence", "ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"}
"""Those that leave nothing out, unless they are told to."""


class Component(msgspec.Struct):
    """A normalizer, pre-tokenizer or decoder."""

    type: str
    decoders: list["Component"] = []
    pretokenizers: list["Component"] = []
    normalizers: list["Component"] = []
    behavior: str = ""
    pattern: Any = None
    content: str = ""

    @property
    def parts(self) -> list["Component"]:
        """Itself and all that it is made of."""
        inner = [*self.decoders, *self.pretokenizers, *self.normalizers]
        return [self, *(part for component in inner for part in component.parts)]

    @property
    def leaves_nothing_out(self) -> bool:
        """Whether a normalizer makes no text shorter, NFC aside."""
        if self.type == "Replace":
            replaced = self.pattern.get("String") if isinstance(self.pattern, dict) else None
            return isinstance(replaced, str) and len(self.content.encode()) >= len(replaced.encode())
        return self.type in _GROWING_NORMALIZERS


class _Model(msgspec.Struct):
    type: str = ""
    byte_fallback: bool = False


class TokenizerLayout(msgspec.Struct):
    """The parts of a tokenizer.json that matter here."""

    model: _Model
    normalizer: Component | None = None
    pre_tokenizer: Component | None = None
    decoder: Component | None = None

    @property
    def decodes_bytes(self) -> bool:
        """Tokens stand for bytes (GPT-2's alphabet). Files without a decoder are judged by their pre-tokenizer."""
        return "ByteLevel" in _types(self.decoder or self.pre_tokenizer)

    @property
    def has_byte_fallback(self) -> bool:
        """Tokens named <0x00> to <0xFF> stand for bytes, all others for text."""
        return "ByteFallback" in _types(self.decoder)

    @property
    def shrinkage(self) -> int:
        """Bytes of a text for one byte of what is divided into tokens, at most; for text that is not ASCII."""
        return NFC_SHRINKAGE if "NFC" in _types(self.normalizer) else 1

    @property
    def encodes_bytes(self) -> bool:
        """Whether text is written in GPT-2's alphabet before it is divided into tokens."""
        return "ByteLevel" in _types(self.pre_tokenizer)

    @property
    def keeps_all_text(self) -> bool:
        """Whether all of a text, if shortened by NFC, reaches the vocabulary, which is one of byte pairs."""
        normalizers = self.normalizer.parts if self.normalizer else []
        pre_tokenizers = self.pre_tokenizer.parts if self.pre_tokenizer else []
        return (
            self.model.type == "BPE"
            and all(part.leaves_nothing_out for part in normalizers)
            and all(part.type in _KEEPING_PRE_TOKENIZERS and part.behavior != "Removed" for part in pre_tokenizers)
        )


def _types(component: Component | None) -> set[str]:
    return set() if component is None else {part.type for part in component.parts}
