"""Compiled grammars are kept by their text, up to a number of bytes."""

from fake_grammar import OneOutput

from engine_core.grammar_cache import REFUSAL_BYTES, GrammarCache
from protocol.grammar import GrammarKind


def test_grammars_and_refusals_are_found_again() -> None:
    cache, grammar = GrammarCache(), OneOutput((1,))
    cache.put((GrammarKind.REGEX, "a"), grammar)
    cache.put((GrammarKind.REGEX, "("), "not closed")
    assert cache.get((GrammarKind.REGEX, "a")) is grammar
    assert cache.get((GrammarKind.REGEX, "(")) == "not closed"
    assert cache.get((GrammarKind.EBNF, "a")) is None
    cache.check_invariants()


def test_the_longest_unused_go_first() -> None:
    cache = GrammarCache(max_bytes=3 * (1 + OneOutput.nbytes))
    for text in "abc":
        cache.put((GrammarKind.REGEX, text), OneOutput((1,)))
    cache.get((GrammarKind.REGEX, "a"))
    cache.put((GrammarKind.REGEX, "d"), OneOutput((1,)))
    assert [cache.get((GrammarKind.REGEX, text)) is not None for text in "abcd"] == [True, False, True, True]
    cache.put((GrammarKind.REGEX, "e" * REFUSAL_BYTES), "larger than all")
    assert all(cache.get((GrammarKind.REGEX, text)) is None for text in "acde")
    cache.check_invariants()
