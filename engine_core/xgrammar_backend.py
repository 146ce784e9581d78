"""Compiles grammars with xgrammar, for the vocabulary of one model."""

import enum
import re
from collections.abc import Callable
from typing import Any

import msgspec

from engine_core.grammar import Bitmask, GrammarRefused
from engine_core.xgrammar_library import load_xgrammar
from protocol.card import ModelCard
from protocol.grammar import GrammarKind, GrammarSpec


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[tuple[str, float]] = {}
    """By token (BPE, WordPiece, WordLevel), or in the order of ids with scores (Unigram)."""


class Alphabet(enum.Enum):
    """Which tokens may come at all. Those that may not have no text."""

    ALL = enum.auto()
    """For structural tags, which may name special tokens."""
    TEXT = enum.auto()
    """No special tokens: they must not come inside of a text."""
    ONE_LINE = enum.auto()
    """No control characters either. JSON on one line has none; xgrammar would let them come in a string with a
    minLength or maxLength."""


_ALPHABETS = {
    GrammarKind.JSON_SCHEMA: Alphabet.ONE_LINE,
    GrammarKind.REGEX: Alphabet.TEXT,
    GrammarKind.EBNF: Alphabet.TEXT,
    GrammarKind.STRUCTURAL_TAG: Alphabet.ALL,
}
_CONTROL = {
    "BYTE_LEVEL": re.compile("[\\x00-\\x1f\u0100-\u011f]"),  # GPT-2's byte alphabet: bytes 0 to 31
    "BYTE_FALLBACK": re.compile("[\\x00-\\x1f]|^<0x[01][0-9A-F]>$"),
    "RAW": re.compile("[\\x00-\\x1f]"),
}


class TokenizerFile(msgspec.Struct, frozen=True):
    """What of tokenizer.json says which text a token stands for."""

    model: _Model
    added_tokens: list[_AddedToken] = []
    decoder: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")


class XgrammarMatcher:
    """A Matcher (engine_core.grammar)."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def has_ended(self) -> bool:
        """See Matcher."""
        return bool(self._matcher.is_terminated())

    def accept(self, token_id: int) -> bool:
        """See Matcher."""
        return bool(self._matcher.accept_token(token_id))

    def fill(self, bitmask: Bitmask, index: int) -> None:
        """See Matcher."""
        self._matcher.fill_next_token_bitmask(bitmask, index)


class XgrammarGrammar:
    """A Grammar (engine_core.grammar)."""

    def __init__(self, library: Any, compiled: Any, ends_by_itself: bool) -> None:
        self._library = library
        self._compiled = compiled
        self._ends_by_itself = ends_by_itself

    @property
    def nbytes(self) -> int:
        """See Grammar."""
        return int(self._compiled.memory_size_bytes)

    def matcher(self) -> XgrammarMatcher:
        """See Grammar."""
        matcher = self._library.GrammarMatcher(self._compiled, terminate_without_stop_token=self._ends_by_itself)
        return XgrammarMatcher(matcher)


class XgrammarBackend:
    """One model's compiler."""

    def __init__(self, card: ModelCard) -> None:
        """Takes half a second for a vocabulary of 49,152. Raises GrammarsMissing."""
        self._library = load_xgrammar()
        self._card = card
        self._file = msgspec.json.decode(card.tokenizer_json, type=TokenizerFile)
        self._compilers: dict[Alphabet, Any] = {}

    def compile(self, spec: GrammarSpec) -> XgrammarGrammar:
        """The GIL is released meanwhile. Raises GrammarRefused for a text that xgrammar does not take.

        What it takes of time and memory is bounded by nothing here: see engine_core.grammar_probe.
        """
        compiler = self._compiler(_ALPHABETS[spec.kind])
        compilations: dict[GrammarKind, Callable[[str], Any]] = {
            GrammarKind.JSON_SCHEMA: lambda text: compiler.compile_json_schema(
                text, any_whitespace=False, strict_mode=False
            ),
            GrammarKind.REGEX: compiler.compile_regex,
            GrammarKind.EBNF: compiler.compile_grammar,
            GrammarKind.STRUCTURAL_TAG: compiler.compile_structural_tag,
        }
        try:
            compiled = compilations[spec.kind](spec.text)
        except (
            RuntimeError,
            ValueError,
            TypeError,
        ) as error:  # what its native code raises, and pydantic
            raise GrammarRefused(_reason(error)) from error
        return XgrammarGrammar(self._library, compiled, not self._card.eos_token_ids)

    def _compiler(self, alphabet: Alphabet) -> Any:
        if alphabet not in self._compilers:
            info = self._library.TokenizerInfo(
                token_texts(self._file, self._card.vocab_size, alphabet),
                vocab_type=self._library.VocabType[vocabulary_type(self._file)],
                vocab_size=self._card.vocab_size,
                stop_token_ids=list(self._card.eos_token_ids),
                add_prefix_space=False,
            )
            self._compilers[alphabet] = self._library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        return self._compilers[alphabet]


def token_texts(file: TokenizerFile, vocab_size: int, alphabet: Alphabet) -> list[str]:
    """By token id, as the tokenizer's model writes them; empty for ids without a token, or that may not come."""
    texts = [""] * vocab_size
    vocab = file.model.vocab
    pairs = vocab.items() if isinstance(vocab, dict) else ((token, id_) for id_, (token, _) in enumerate(vocab))
    for token, token_id in pairs:
        if token_id < vocab_size:
            texts[token_id] = token
    for added in file.added_tokens:
        if added.id < vocab_size:
            texts[added.id] = "" if added.special and alphabet is not Alphabet.ALL else added.content
    if alphabet is Alphabet.ONE_LINE:
        control = _CONTROL[vocabulary_type(file)]
        texts = ["" if control.search(text) else text for text in texts]
    return texts


def vocabulary_type(file: TokenizerFile) -> str:
    """How tokens stand for bytes: the name of one of xgrammar's VocabType."""
    parts = bytes(file.decoder) + bytes(file.pre_tokenizer)
    if b'"ByteLevel"' in parts:
        return "BYTE_LEVEL"
    decoder = bytes(file.decoder)
    is_sentence_piece = b'"ByteFallback"' in decoder or b'"Metaspace"' in decoder
    return "BYTE_FALLBACK" if is_sentence_piece else "RAW"


def _reason(error: Exception) -> str:
    """What xgrammar says, without the time and the place in its source."""
    text = str(error).strip()
    return text.rpartition(".cc:")[2].partition(": ")[2] or text if ".cc:" in text else text
