"""Incremental detokenisation: token ids to text, one token at a time.

Each token stands for some bytes, and one UTF-8 decoder per choice turns the bytes into characters; an incomplete
character, and nothing else, waits in that decoder for its next bytes. The rule, the same with and without
streaming: the text is that of all bytes together; invalid bytes become U+FFFD as in the Unicode standard's
"substitution of maximal subparts"; a character that is cut off at the end is left out.

tokenizers' own DecodeStream is not used: it holds text back as long as it *ends* in U+FFFD, so that a model that
emits invalid bytes makes it hold everything, and with byte-fallback decoders it raises when such bytes follow a
complete character.
"""

import codecs
import re
from collections.abc import Sequence

from api_server.tokenizer import Tokenizer

_LONGEST_CHARACTER_BYTES = 4
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies (Radford et al. 2019, GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class Detokenizer:
    """Owner of one choice's decoding state."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool,
        never_skipped: frozenset[int] = frozenset(),
    ) -> None:
        """`prompt_ids` are what the output continues: a word, or a character, may have begun there.

        `never_skipped` are special tokens that come out in any case: markers that a parser waits for.
        """
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._never_skipped = never_skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._anchor: int | None = None
        """The last token of plain text: decoders of word-based vocabularies look back by one token."""
        for token_id in prompt_ids[-_LONGEST_CHARACTER_BYTES:]:
            self._utf8.decode(self._take(token_id))
        if prompt_ids and tokenizer.is_special(prompt_ids[-1]):
            self._anchor = None  # text after a turn marker starts anew, without the space of a next word

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; empty for a skipped token and within a character."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id) and token_id not in self._never_skipped:
            return ""
        return self._utf8.decode(self._take(token_id))

    def spell(self, token_id: int) -> bytes:
        """What the token would add here, special tokens by their names; nothing is changed."""
        name = self._tokenizer.token(token_id)
        if name is None:  # the output layer may have more rows than the vocabulary has tokens
            return b""
        if self._tokenizer.byte_level:
            # Added tokens are spelled as they are, also where their letters double as names of bytes.
            added = self._tokenizer.added_token(token_id)
            return _byte_level_bytes(name) if added is None else added.encode()
        byte = self._byte_named(name)
        return self._text_of(token_id).encode() if byte is None else byte

    def _take(self, token_id: int) -> bytes:
        spelling = self.spell(token_id)
        name = self._tokenizer.token(token_id)
        if name is not None and not self._tokenizer.byte_level and self._byte_named(name) is None:
            self._anchor = token_id
        return spelling

    def _byte_named(self, name: str) -> bytes | None:
        byte = _BYTE_TOKEN.fullmatch(name) if self._tokenizer.byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else None

    def _text_of(self, token_id: int) -> str:
        """What the token adds to the text of the token before it."""
        if self._anchor is None:
            return self._tokenizer.decode([token_id])
        both = self._tokenizer.decode([self._anchor, token_id])
        return both.removeprefix(self._tokenizer.decode([self._anchor]))


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, name))
    except KeyError:  # not spelled in the alphabet: the name is the text
        return name.encode()
