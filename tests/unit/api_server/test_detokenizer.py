"""Incremental detokenisation equals the decoding of all tokens, and never lets out half a character."""

import json
from collections.abc import Callable

import pytest
import tokenizers
from http_fakes import byte_fallback_json, byte_level_json
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from api_server.detokenizer import Detokenizer
from api_server.tokenizer import Tokenizer

BYTE_LEVEL = Tokenizer(byte_level_json())
FALLBACK = Tokenizer(byte_fallback_json())
unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def byte_ids(data: bytes) -> list[int]:
    """Single-byte tokens of the byte-fallback vocabulary."""
    return [3 + byte for byte in data]


def level_ids(data: bytes) -> list[int]:
    """Single-byte tokens of the byte-level vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    shown = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    rest = iter(letter for letter in alphabet if ord(letter) >= 256)
    names = [shown.get(byte) or next(rest) for byte in range(256)]
    raw = tokenizers.Tokenizer.from_str(byte_level_json())
    return [raw.token_to_id(names[byte]) for byte in data]


def stream(tokenizer: Tokenizer, token_ids: list[int], skip: bool = True, prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [], skip)
    return [detokenizer.push(token_id) for token_id in token_ids]


@given(unicode_text)
def test_byte_level_text_comes_out_whole(text: str) -> None:
    pieces = stream(BYTE_LEVEL, BYTE_LEVEL.encode(text, add_special_tokens=False))
    assert "".join(pieces) == text


@given(st.text(alphabet="thefox lo你é🫠", max_size=20))
def test_byte_fallback_text_equals_the_full_decoding(text: str) -> None:
    token_ids = FALLBACK.encode(text, add_special_tokens=False)
    assert "".join(stream(FALLBACK, token_ids)) == FALLBACK.decode(token_ids)


VOCABULARIES = pytest.mark.parametrize(("tokenizer", "encode"), [(BYTE_LEVEL, level_ids), (FALLBACK, byte_ids)])
Encode = Callable[[bytes], list[int]]


@VOCABULARIES
@given(data=st.binary(max_size=30))
def test_invalid_bytes_become_replacement_characters(tokenizer: Tokenizer, encode: Encode, data: bytes) -> None:
    # BR-a22. The full stop ends any character that may still be incomplete.
    assert "".join(stream(tokenizer, encode(data + b"."))) == (data + b".").decode("utf-8", errors="replace")


@VOCABULARIES
@given(data=st.binary(max_size=30))
def test_only_a_cut_off_character_is_left_out_at_the_end(tokenizer: Tokenizer, encode: Encode, data: bytes) -> None:
    # BR-a04. An incomplete character has one to three bytes.
    text = "".join(stream(tokenizer, encode(data)))
    whole = data.decode("utf-8", errors="replace")
    left_out = whole.removeprefix(text)
    assert whole == text + left_out
    assert left_out in ("", "\ufffd", "\ufffd\ufffd", "\ufffd\ufffd\ufffd")


@VOCABULARIES
def test_each_emoji_arrives_whole_in_one_piece(tokenizer: Tokenizer, encode: Encode) -> None:
    # BR-a02
    assert stream(tokenizer, encode("ok🫠🧿".encode())) == ["o", "k", "", "", "", "🫠", "", "", "", "🧿"]


def test_ordinary_tokens_come_out_at_once() -> None:
    # BR-a03
    token_ids = BYTE_LEVEL.encode("hello there, how are you", add_special_tokens=False)
    assert all(stream(BYTE_LEVEL, token_ids))


def test_invalid_bytes_do_not_hold_back_what_follows() -> None:
    # BR-n10
    assert stream(FALLBACK, byte_ids(b"\xff\xffA\xe4B")) == ["\ufffd", "\ufffd", "A", "", "\ufffdB"]


def test_a_character_that_began_in_the_prompt_is_completed() -> None:
    first, *rest = level_ids("é".encode())
    assert stream(BYTE_LEVEL, rest, prompt=[first]) == ["é"]


def test_a_word_that_continues_the_prompt_keeps_its_space() -> None:
    words = FALLBACK.encode("the fox", add_special_tokens=False)
    assert "".join(stream(FALLBACK, words[1:], prompt=words[:1])) == " fox"
    assert "".join(stream(FALLBACK, words[1:])) == "fox"


def test_text_after_a_turn_marker_starts_without_a_space() -> None:
    first, *rest = FALLBACK.encode("the fox", add_special_tokens=False)
    assert "".join(stream(FALLBACK, rest, prompt=[first, 2])) == "fox"


def test_special_tokens_are_skipped_only_on_request() -> None:
    token_ids = [1, *BYTE_LEVEL.encode("hello", add_special_tokens=False), 2]
    assert "".join(stream(BYTE_LEVEL, token_ids, skip=True)) == "hello"
    assert "".join(stream(BYTE_LEVEL, token_ids, skip=False)) == "<|im_start|>hello<|im_end|>"


def test_a_marker_spelled_out_in_plain_tokens_is_plain_text() -> None:
    # BR-a18
    assert "".join(stream(BYTE_LEVEL, level_ids(b"<|im_end|>"))) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_give_no_text() -> None:
    assert stream(BYTE_LEVEL, [100_000]) == [""]


def test_a_missing_decoder_is_judged_by_the_pre_tokenizer() -> None:
    # BR-n11
    raw = tokenizers.Tokenizer.from_str(byte_level_json())
    accented = raw.encode("café").ids
    layout = json.loads(raw.to_str()) | {"decoder": None}
    assert "".join(stream(Tokenizer(json.dumps(layout)), accented)) == "café"


def test_added_tokens_are_spelled_as_they_are() -> None:
    raw = tokenizers.Tokenizer.from_str(byte_level_json())
    raw.add_tokens(["<café>"])
    assert stream(Tokenizer(raw.to_str()), [raw.token_to_id("<café>")]) == ["<café>"]


def test_wordpiece_words_are_joined_by_what_precedes_them() -> None:
    vocab = {"[UNK]": 0, "fox": 1, "##es": 2, "run": 3}
    raw = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    assert stream(Tokenizer(raw.to_str()), [1, 2, 3]) == ["fox", "es", " run"]


def test_a_special_token_that_a_parser_waits_for_is_not_skipped() -> None:
    tokenizer = Tokenizer(byte_level_json())
    markers = tokenizer.special_ids_in(["<|im_start|>assistant", "other"])
    assert markers == {1}
    detokenizer = Detokenizer(tokenizer, [], True, markers)
    assert [detokenizer.push(token_id) for token_id in (0, 1, 2)] == ["", "<|im_start|>", ""]
