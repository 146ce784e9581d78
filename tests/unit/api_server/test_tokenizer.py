"""The tokenizer wrapper: whole texts, whatever the file says, and no stall of the event loop."""

import asyncio

import pytest
import tokenizers
from http_fakes import byte_fallback_json, byte_level_json, tiny_model

from api_server.tokenizer import LONG_TEXT_CHARS, Tokenizer
from protocol.errors import ProtocolError


def test_truncation_and_padding_of_the_file_are_off() -> None:
    raw = tokenizers.Tokenizer.from_str(byte_level_json())
    raw.enable_truncation(3)
    raw.enable_padding(length=50)
    assert Tokenizer(raw.to_str()).encode("hello there, you", False) == tiny_model().tokenizer.encode(
        "hello there, you", False
    )


async def test_a_long_text_gives_the_same_ids_as_its_parts_and_lets_others_run() -> None:
    tokenizer = tiny_model().tokenizer
    text = "one " * LONG_TEXT_CHARS
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    token_ids = await tokenizer.encode_async(text, add_special_tokens=False)
    counter.cancel()
    assert turns > 1
    assert tokenizer.decode(token_ids) == text


def test_kinds_of_vocabulary_are_told_apart() -> None:
    level, fallback = Tokenizer(byte_level_json()), Tokenizer(byte_fallback_json())
    assert (level.byte_level, level.byte_fallback) == (True, False)
    assert (fallback.byte_level, fallback.byte_fallback) == (False, True)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "nonsense"])
def test_a_file_that_is_no_tokenizer_is_the_cards_fault(content: str) -> None:
    with pytest.raises(ProtocolError, match="tokenizer"):
        Tokenizer(content)
