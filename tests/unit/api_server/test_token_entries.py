"""Entries of single tokens: told with their text, and never those whose text was cut off."""

import itertools
import math

import pytest
from http_fakes import byte_fallback_json, ids, make_card, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from api_server.choice_text import ChoiceText
from api_server.detokenizer import Detokenizer
from api_server.generation_backend import TokenDelta
from api_server.parsers.answer_parser import WHOLE_TEXT, AnswerParser
from api_server.served_model import ServedModel
from api_server.stop_strings import StopStrings
from api_server.token_entries import TokenEntry, TokenTrail, finite
from protocol.logprobs import LOGPROB_FLOOR, TokenLogprobs
from protocol.messages import FinishReason

EOS = 2


def make(stops: list[str] | None = None, include: bool = False) -> ChoiceText:
    return ChoiceText(
        Detokenizer(tiny_model().tokenizer, [], True),
        StopStrings(stops or [], include),
        0,
        frozenset({EOS}),
        AnswerParser(WHOLE_TEXT, lambda: "id"),
        keeps_tokens=True,
    )


def feed(choice: ChoiceText, deltas: list[TokenDelta]) -> tuple[str, list[TokenEntry]]:
    """Text and entries; entries come with text or with the end, and none before its text."""
    text, entries = "", []
    for delta in deltas:
        new = choice.push(delta)
        choice.check_invariants()
        assert new.text or new.finish or not new.tokens
        text += new.text
        entries += new.tokens
        assert all(entry.offset <= len(text) for entry in entries)
        if new.finish is not None:
            break
    return text, entries


def single(token_ids: list[int], finish: FinishReason = FinishReason.LENGTH) -> list[TokenDelta]:
    last = len(token_ids) - 1
    return [TokenDelta([token_id], finish if i == last else None) for i, token_id in enumerate(token_ids)]


def test_there_is_an_entry_for_each_token_also_for_the_last() -> None:
    text, entries = feed(make(), single([*ids("hello there"), EOS], FinishReason.STOP))
    assert [entry.token.token_id for entry in entries] == [*ids("hello there"), EOS]
    assert b"".join(entry.token.spelling for entry in entries) == b"hello there<|im_end|>"
    assert entries[-1].offset == len(text)


def test_tokens_whose_text_a_stop_string_cuts_off_have_none() -> None:
    text, entries = feed(make([" the"]), single(ids("hello there fox")))
    assert text == "hello"
    assert b"".join(entry.token.spelling for entry in entries) == b"hello"


def test_tokens_of_text_that_is_held_back_are_held_back_too() -> None:
    choice = make(["oot!"])
    new = choice.push(TokenDelta(ids("hello there foo")))
    assert new.text == "hello there f"
    assert b"".join(entry.token.spelling for entry in new.tokens) == b"hello there f"
    rest = choice.push(TokenDelta(ids("t there"), FinishReason.LENGTH))
    assert (rest.text, b"".join(entry.token.spelling for entry in rest.tokens)) == ("oot there", b"oot there")


def test_a_token_that_is_cut_in_two_has_its_entry() -> None:
    token_ids = ids("hello there")
    text, entries = feed(make(["lo"]), single(token_ids))
    assert text == "hel"
    assert b"".join(entry.token.spelling for entry in entries).startswith(b"hel")
    assert all(entry.offset < 3 for entry in entries)


def test_the_parts_of_a_character_have_entries_of_their_own() -> None:
    # BR-f04
    token_ids = ids("\N{FLEXED BICEPS}")
    assert len(token_ids) == 4
    text, entries = feed(make(), single(token_ids))
    assert (text, [entry.offset for entry in entries]) == ("\N{FLEXED BICEPS}", [0] * 4)
    assert b"".join(entry.token.spelling for entry in entries).decode() == text


@given(
    token_ids=st.lists(st.integers(0, 339), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    stops=st.lists(st.text(alphabet="the lo", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
)
def test_any_arrival_gives_the_same_entries_and_their_offsets_are_places_in_the_text(
    token_ids: list[int], cuts: list[int], stops: list[str], include: bool
) -> None:
    text, entries = feed(make(stops, include), single(token_ids))
    edges = sorted({0, *(cut % len(token_ids) for cut in cuts), len(token_ids)})
    pieces = [token_ids[a:b] for a, b in itertools.pairwise(edges)]
    joined = [TokenDelta(p, FinishReason.LENGTH if i == len(pieces) - 1 else None) for i, p in enumerate(pieces)]
    assert feed(make(stops, include), joined) == (text, entries)
    assert [entry.token.token_id for entry in entries] == token_ids[: len(entries)]
    detokenizer = Detokenizer(tiny_model().tokenizer, [], True)
    for entry in entries:
        piece = detokenizer.push(entry.token.token_id)
        assert text[entry.offset :].startswith(piece) or piece.startswith(text[entry.offset :])
        assert entry.offset < len(text) or not piece, "told, though its text was cut off"


def test_alternatives_are_spelled_as_they_would_have_come_at_that_place() -> None:
    # BR-f04: after a word, and byte tokens by their bytes
    model = ServedModel(make_card(tokenizer_json=byte_fallback_json(), vocab_size=400), "hash")
    tokenizer = model.tokenizer
    the, fox, byte = (tokenizer._tokenizer.token_to_id(name) for name in ("\u2581the", "\u2581fox", "<0xF0>"))
    trail = TokenTrail(Detokenizer(tokenizer, [], True))
    assert trail.push(the, TokenLogprobs(-1.0, 1, [the, fox], [-1.0, -2.0])) == "the"
    assert trail.push(fox, TokenLogprobs(-1.0, 2, [byte, fox], [-0.5, -1.0])) == " fox"
    first, second = trail.take(0)
    assert [top.spelling for top in first.tops] == [b"the", b"fox"]
    assert [top.spelling for top in second.tops] == [b"\xf0", b" fox"]


@pytest.mark.parametrize(
    ("given", "told"),
    [(-math.inf, LOGPROB_FLOOR), (math.nan, LOGPROB_FLOOR), (1e-7, 0.0), (-1.5, -1.5), (-1e30, LOGPROB_FLOOR)],
)
def test_log_probabilities_are_finite(given: float, told: float) -> None:
    # BR-f01, BR-f02
    assert finite(given) == told
