"""A vocabulary of bytes with one end-of-sequence token, for grammars without a model."""

import json

import numpy as np

from engine_core.grammar import Grammar, Matcher
from engine_core.xgrammar_backend import XgrammarBackend
from protocol.card import ModelCard
from protocol.grammar import GrammarKind, GrammarSpec

EOS = 256
SPECIAL = 257
VOCAB = 260
"""Two rows of the output layer have no token."""


def _byte_alphabet() -> list[str]:
    """GPT-2's: a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_card(eos_token_ids: tuple[int, ...] = (EOS,)) -> ModelCard:
    """Token i is byte i; a special token has a text that JSON strings could hold."""
    tokenizer = {
        "model": {"vocab": {char: byte for byte, char in enumerate(_byte_alphabet())}},
        "added_tokens": [
            {"id": EOS, "content": "</s>", "special": True},
            {"id": SPECIAL, "content": "<|x|>", "special": True},
        ],
        "decoder": {"type": "ByteLevel"},
    }
    return ModelCard("m", 512, VOCAB, json.dumps(tokenizer), eos_token_ids)


def compiled(kind: GrammarKind, text: str, backend: XgrammarBackend | None = None) -> Grammar:
    return (backend or XgrammarBackend(byte_card())).compile(GrammarSpec(kind, text, "f"))


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the text is a whole output."""
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and EOS in allowed(matcher)


def allowed(matcher: Matcher) -> list[int]:
    bitmask = np.zeros((1, -(-VOCAB // 32)), np.int32)
    matcher.fill(bitmask, 0)
    return np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")[:VOCAB]).tolist()
