"""xgrammar on a vocabulary of bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from byte_model import EOS, SPECIAL, VOCAB, accepts, allowed, byte_card, compiled

from engine_core.grammar import GrammarRefused
from engine_core.xgrammar_backend import Alphabet, TokenizerFile, XgrammarBackend, token_texts, vocabulary_type
from protocol.grammar import GrammarKind

ANY_STRING = json.dumps({"type": "string"})


def test_each_kind_of_grammar() -> None:
    assert accepts(compiled(GrammarKind.JSON_SCHEMA, ANY_STRING), '"é"')
    assert accepts(compiled(GrammarKind.REGEX, "[0-9]{2}"), "42")
    assert accepts(compiled(GrammarKind.EBNF, 'root ::= "a" "b"*'), "abb")
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "x"}, "end": "</a>"},
    }
    assert accepts(compiled(GrammarKind.STRUCTURAL_TAG, json.dumps(tag)), "<a>x</a>")


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        (GrammarKind.REGEX, "(", "parenthesis"),
        (GrammarKind.REGEX, r"(a)\1", "Backreference"),
        (GrammarKind.EBNF, "root ::= foo", "not defined"),
        (GrammarKind.STRUCTURAL_TAG, '{"type": "structural_tag", "format": {"type": "nothing"}}', "nothing"),
    ],
)
def test_what_xgrammar_refuses_is_said_without_its_source(kind: GrammarKind, text: str, word: str) -> None:
    with pytest.raises(GrammarRefused, match=word) as caught:
        compiled(kind, text)
    assert ".cc" not in str(caught.value) and "/" not in str(caught.value)


def test_the_end_may_come_only_where_the_output_is_whole() -> None:
    # BR-e15: every end-of-sequence token
    two_ends = XgrammarBackend(byte_card((EOS, ord("!"))))
    matcher = compiled(GrammarKind.REGEX, "a!?b", two_ends).matcher()
    assert allowed(matcher) == [ord("a")]
    for char in b"ab":
        assert matcher.accept(char) and not matcher.has_ended
    assert allowed(matcher) == sorted([EOS, ord("!")])
    assert matcher.accept(EOS) and matcher.has_ended


def test_without_end_tokens_an_output_ends_by_itself() -> None:
    matcher = compiled(GrammarKind.REGEX, "ab", XgrammarBackend(byte_card(()))).matcher()
    assert matcher.accept(ord("a")) and not matcher.has_ended
    assert matcher.accept(ord("b")) and matcher.has_ended


def test_special_tokens_come_in_no_text_but_a_tag_may_name_them() -> None:
    matcher = compiled(GrammarKind.JSON_SCHEMA, ANY_STRING).matcher()
    assert matcher.accept(ord('"'))
    assert not {SPECIAL, EOS, VOCAB - 1} & set(allowed(matcher))
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "<|x|>"}}
    assert SPECIAL in allowed(compiled(GrammarKind.STRUCTURAL_TAG, json.dumps(tag)).matcher())


def test_json_comes_on_one_line() -> None:
    # BR-e08: no whitespace that a model could go on with for ever
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = compiled(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert accepts(grammar, '{"a": 1}')
    assert not any(accepts(grammar, text) for text in ('{"a":  1}', '{\n"a": 1}', '{"a": 1} ', '{"a": 1}\n'))


@pytest.mark.parametrize(
    ("decoder", "vocab", "expected", "one_line"),
    [
        ('{"type": "ByteLevel"}', '{"a": 0, "Ċ": 1, "Ġb": 2}', "BYTE_LEVEL", ["a", "", "Ġb"]),
        ('{"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}', '{"▁a": 0, "<0x0A>": 1, "<0x41>": 2}',
         "BYTE_FALLBACK", ["▁a", "", "<0x41>"]),
        ("null", '[["a", -1.0], ["\\n", -2.0], ["b", -3.0]]', "RAW", ["a", "", "b"]),
    ],
)  # fmt: skip
def test_vocabularies(decoder: str, vocab: str, expected: str, one_line: list[str]) -> None:
    import msgspec

    text = f'{{"model": {{"vocab": {vocab}}}, "decoder": {decoder}, "added_tokens": []}}'
    file = msgspec.json.decode(text, type=TokenizerFile)
    assert vocabulary_type(file) == expected
    assert token_texts(file, 4, Alphabet.ONE_LINE) == [*one_line, ""]
    assert token_texts(file, 2, Alphabet.TEXT)[0] == one_line[0]


def test_torch_and_transformers_are_not_loaded(tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"print('{name} was imported')\n")
    code = (
        "import sys; from byte_model import *; from protocol.grammar import GrammarKind\n"
        "print(accepts(compiled(GrammarKind.REGEX, 'a'), 'a'), {'torch', 'transformers', 'mlx'} & set(sys.modules))\n"
        "import torch"
    )
    path = ":".join([str(tmp_path), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["True set()", "torch was imported"]
