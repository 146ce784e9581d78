"""The least number of tokens of a text is never more than it has, and near enough to refuse what is far too long."""

import json
import unicodedata
from typing import Any

import pytest
from http_fakes import CONTEXT, Server, byte_fallback_json, byte_level_json, user
from hypothesis import example, given
from hypothesis import strategies as st

from api_server.tokenizer import Tokenizer
from api_server.tokenizer_layout import NFC_SHRINKAGE


def changed(content: str, **parts: Any) -> Tokenizer:
    return Tokenizer(json.dumps(json.loads(content) | parts))


def without_letters(content: str, *letters: str) -> str:
    layout = json.loads(content)
    for letter in letters:
        del layout["model"]["vocab"][letter]
    return json.dumps(layout)


LEVEL, FALLBACK = Tokenizer(byte_level_json()), Tokenizer(byte_fallback_json())
NFC = changed(byte_level_json(), normalizer={"type": "NFC"})
INCOMPLETE = Tokenizer(without_letters(byte_level_json(), "Z", "\u0104"))  # the letter "Z" and byte 4
CERTAIN = [LEVEL, FALLBACK, NFC, INCOMPLETE]
TEXTS = st.text() | st.text("aZ \x04the<|im_end|>\u1fef\u212b\U0002f800e\u0301\u1100\u1161\u11a8\u4f60", max_size=200)


@given(TEXTS)
def test_a_text_has_at_least_so_many_tokens(text: str) -> None:
    for tokenizer in CERTAIN:
        repeated = text * 100  # so that a bound that is a little too high shows
        assert tokenizer.least_tokens(repeated) <= len(tokenizer.encode(repeated, add_special_tokens=False))


@given(TEXTS)
@example("\u1fef" * 10)
def test_nfc_makes_no_text_shorter_than_stated(text: str) -> None:
    assert len(unicodedata.normalize("NFC", text).encode()) * NFC_SHRINKAGE >= len(text.encode())


@pytest.mark.parametrize("tokenizer", CERTAIN)
@pytest.mark.parametrize("text", ["hello there ", "\u4f60 "])
def test_long_texts_are_known_to_be_long(tokenizer: Tokenizer, text: str) -> None:
    if text.isascii() or tokenizer is not NFC:
        assert tokenizer.least_tokens(text * 1000) > 300


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "aa"}, "content": "a"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "aaaa"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}]}},
    ],
)
def test_nothing_is_certain_where_text_may_be_left_out(parts: Any) -> None:
    assert changed(byte_level_json(), **parts).least_tokens("hello there " * 1000) == 0


def test_nothing_is_certain_where_a_token_swallows_what_is_around_it() -> None:
    added = json.loads(byte_level_json())["added_tokens"]
    added[1]["rstrip"] = True
    assert changed(byte_level_json(), added_tokens=added).least_tokens("hello there " * 1000) == 0


def test_bytes_that_the_vocabulary_lacks_do_not_count() -> None:
    assert INCOMPLETE.encode("Z\x04" * 1000, False) == []
    assert INCOMPLETE.least_tokens("Z\x04" * 1000) == 0


@pytest.mark.parametrize("chat", [False, True])
async def test_a_prompt_far_too_long_is_refused_without_being_encoded(
    monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    server, text = Server(), "hello there " * 10_000

    def encode(*_: Any, **__: Any) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(Tokenizer, "encode", encode)
    response = await (server.chat(messages=[user(text)]) if chat else server.complete(prompt=text))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"{CONTEXT} tokens" in error["message"]
