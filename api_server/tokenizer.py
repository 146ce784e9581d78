"""A model's tokenizer: text to ids, and what detokenisation must know of single tokens."""

import asyncio
from collections.abc import Iterable

import msgspec
import tokenizers

from api_server.token_bound import token_bound
from api_server.tokenizer_layout import TokenizerLayout
from protocol.errors import ProtocolError

LONG_TEXT_CHARS = 20_000
"""Texts above this are encoded in a thread. 20,000 characters take 5 ms (2 GHz x86, byte-level BPE): longer would
be felt by every running stream."""


class Tokenizer:
    """A Hugging Face tokenizer without truncation and padding. Immutable, shared by all requests of a model."""

    def __init__(self, tokenizer_json: str) -> None:
        """Loads the content of a tokenizer.json. Raises ProtocolError (the card is at fault)."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
            layout = msgspec.json.decode(tokenizer_json, type=TokenizerLayout)
        except Exception as error:  # the library raises bare Exception for any fault of the file
            raise ProtocolError(f"tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.byte_level = layout.decodes_bytes
        """Tokens stand for bytes (GPT-2's alphabet). Files without a decoder are judged by their pre-tokenizer."""
        self.byte_fallback = layout.has_byte_fallback
        """Tokens named <0x00> to <0xFF> stand for bytes, all others for text."""
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bound = token_bound(layout, self._tokenizer)

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text certainly has, found without encoding it; 0 where nothing is certain."""
        return 0 if self._bound is None else self._bound.least_tokens(text)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of the text, which must be valid Unicode (no lone surrogates)."""
        ids: list[int]
        if len(text) <= LONG_TEXT_CHARS:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        else:  # the batch call is the one that lets other threads run meanwhile
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    async def encode_async(self, text: str, add_special_tokens: bool) -> list[int]:
        """As `encode`, without holding up the event loop when the text is long."""
        if len(text) <= LONG_TEXT_CHARS:
            return self.encode(text, add_special_tokens)
        return await asyncio.to_thread(self.encode, text, add_special_tokens)

    def decode(self, token_ids: list[int]) -> str:
        """Their text, special tokens included; incomplete characters become U+FFFD."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def token(self, token_id: int) -> str | None:
        """The token's name in the vocabulary, None for an id that has none."""
        name: str | None = self._tokenizer.id_to_token(token_id)
        return name

    def added_token(self, token_id: int) -> str | None:
        """The text of a token that was added to the model's own vocabulary, None for other tokens."""
        return self._added.get(token_id)

    def special_ids_in(self, texts: Iterable[str]) -> frozenset[int]:
        """Special tokens whose text is one of these, or a part of one."""
        markers = list(texts)
        return frozenset(
            token_id for token_id in self._special if any(self._added[token_id] in marker for marker in markers)
        )

    def is_special(self, token_id: int) -> bool:
        """Whether skip_special_tokens leaves it out."""
        return token_id in self._special
