"""Compiles grammars with xgrammar, for the vocabulary of one model."""

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


class _TokenizerFile(msgspec.Struct, frozen=True):
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
        self._file = msgspec.json.decode(card.tokenizer_json, type=_TokenizerFile)
        self._compilers: dict[bool, Any] = {}

    def compile(self, spec: GrammarSpec) -> XgrammarGrammar:
        """The GIL is released meanwhile. Raises GrammarRefused for a text that xgrammar does not take.

        What it takes of time and memory is bounded by nothing here: see engine_core.grammar_probe.
        """
        compiler = self._compiler(with_special_tokens=spec.kind is GrammarKind.STRUCTURAL_TAG)
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

    def _compiler(self, with_special_tokens: bool) -> Any:
        """Special tokens have no text, so that none comes inside of a text, except where a tag may name them."""
        if with_special_tokens not in self._compilers:
            self._compilers[with_special_tokens] = self._library.GrammarCompiler(
                self._tokenizer_info(with_special_tokens), max_threads=1, cache_enabled=False
            )
        return self._compilers[with_special_tokens]

    def _tokenizer_info(self, with_special_tokens: bool) -> Any:
        vocabulary = token_texts(self._file, self._card.vocab_size, with_special_tokens)
        vocab_type = self._library.VocabType[vocabulary_type(self._file)]
        return self._library.TokenizerInfo(
            vocabulary,
            vocab_type=vocab_type,
            vocab_size=self._card.vocab_size,
            stop_token_ids=list(self._card.eos_token_ids),
            add_prefix_space=False,
        )


def token_texts(file: _TokenizerFile, vocab_size: int, with_special_tokens: bool) -> list[str]:
    """By token id, as the tokenizer's model writes them; empty for ids without a token, or of special ones."""
    texts = [""] * vocab_size
    vocab = file.model.vocab
    pairs = vocab.items() if isinstance(vocab, dict) else ((token, id_) for id_, (token, _) in enumerate(vocab))
    for token, token_id in pairs:
        if token_id < vocab_size:
            texts[token_id] = token
    for added in file.added_tokens:
        if added.id < vocab_size:
            texts[added.id] = "" if added.special and not with_special_tokens else added.content
    return texts


def vocabulary_type(file: _TokenizerFile) -> str:
    """How tokens stand for bytes: the name of one of xgrammar's VocabType."""
    parts = bytes(file.decoder) + bytes(file.pre_tokenizer)
    if b'"ByteLevel"' in parts:
        return "BYTE_LEVEL"
    return "BYTE_FALLBACK" if b'"ByteFallback"' in bytes(file.decoder) else "RAW"


def _reason(error: Exception) -> str:
    """What xgrammar says, without the time and the place in its source."""
    text = str(error).strip()
    return text.rpartition(".cc:")[2].partition(": ")[2] or text if ".cc:" in text else text
