"""One choice: the same text, token count and end however its tokens arrive."""

import pytest
from http_fakes import ids, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from api_server.choice_text import ChoiceText, Finish
from api_server.detokenizer import Detokenizer
from api_server.generation_backend import TokenDelta
from api_server.parsers.answer_parser import WHOLE_TEXT, AnswerGrammar, AnswerParser
from api_server.parsers.events import CallBegan, Content, Reasoning
from api_server.parsers.names import ParserNames
from api_server.parsers.tools import Tools
from api_server.stop_strings import StopStrings
from protocol.messages import FinishReason

EOS = 2


def make(stops: list[str] | None = None, min_tokens: int = 0, include: bool = False, skip: bool = True) -> ChoiceText:
    detokenizer = Detokenizer(tiny_model().tokenizer, [], skip)
    return ChoiceText(
        detokenizer,
        StopStrings(stops or [], include),
        min_tokens,
        frozenset() if include else frozenset({EOS}),
        AnswerParser(WHOLE_TEXT, lambda: "id"),
    )


def feed(choice: ChoiceText, deltas: list[TokenDelta]) -> tuple[str, Finish | None, int]:
    text = ""
    for delta in deltas:
        text += choice.push(delta).text
        choice.check_invariants()
        if choice.finish is not None:
            break
    return text, choice.finish, choice.completion_tokens


def split(token_ids: list[int], cuts: list[int], finish: FinishReason) -> list[TokenDelta]:
    edges = sorted({0, *(cut % len(token_ids) for cut in cuts)})
    pieces = [token_ids[a:b] for a, b in zip(edges, [*edges[1:], len(token_ids)], strict=True)]
    return [TokenDelta(piece, finish if i == len(pieces) - 1 else None) for i, piece in enumerate(pieces)]


@given(
    token_ids=st.lists(st.integers(0, 339), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
    stops=st.lists(st.text(alphabet="the lo", min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 6),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    include=st.booleans(),
)
def test_any_arrival_of_tokens_gives_the_same_text_count_and_end(
    token_ids: list[int], cuts: list[int], stops: list[str], min_tokens: int, finish: FinishReason, include: bool
) -> None:
    whole = feed(make(stops, min_tokens, include), [TokenDelta(token_ids, finish)])
    assert feed(make(stops, min_tokens, include), split(token_ids, cuts, finish)) == whole


def test_the_end_of_sequence_token_counts_but_is_not_text() -> None:
    # BR-a17: also when special tokens are shown
    deltas = [TokenDelta([*ids("hello there"), EOS], FinishReason.STOP, stop_reason=EOS)]
    text, finish, tokens = feed(make(skip=False), deltas)
    assert (text, finish, tokens) == ("hello there", Finish("stop", EOS), len(ids("hello there")) + 1)


def test_the_last_token_is_text_when_the_choice_ends_by_length() -> None:
    text, finish, _ = feed(make(), [TokenDelta(ids("hello there"), FinishReason.LENGTH)])
    assert (text, finish) == ("hello there", Finish("length"))


def test_a_final_token_that_is_no_stop_token_is_text() -> None:
    text, _, _ = feed(make(), [TokenDelta(ids("hello there"), FinishReason.STOP)])
    assert text == "hello there"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_a_character_cut_off_by_the_length_limit_is_left_out(length: int) -> None:
    # BR-a04
    token_ids = ids("🫠🧿")[:length]
    text, finish, tokens = feed(make(), [TokenDelta(token_ids, FinishReason.LENGTH)])
    assert (text, finish, tokens) == ("🫠"[: length // 4], Finish("length"), length)


def test_a_held_back_beginning_of_a_stop_string_comes_out_at_the_end() -> None:
    text, finish, _ = feed(make(["there!"]), [TokenDelta(ids("hello there"), FinishReason.LENGTH)])
    assert (text, finish) == ("hello there", Finish("length"))


def test_tokens_after_the_one_that_completes_a_stop_string_are_not_counted() -> None:
    token_ids = ids("one two three")
    text, finish, tokens = feed(make(["two"]), [TokenDelta(token_ids)])
    assert (text, finish) == ("one ", Finish("stop", "two"))
    assert tokens == len(ids("one two"))


def test_a_stop_string_before_min_tokens_does_not_end_the_choice() -> None:
    # BR-g08
    token_ids = ids("a,b,c,d")
    assert len(token_ids) == 7
    text, finish, tokens = feed(make([","], min_tokens=4), [TokenDelta(token_ids)])
    assert (text, finish, tokens) == ("a,b", Finish("stop", ","), 4)
    text, finish, tokens = feed(make([","], min_tokens=5), [TokenDelta(token_ids)])
    assert (text, finish, tokens) == ("a,b,c", Finish("stop", ","), 6)


def test_a_stop_string_wins_over_the_engines_end_in_the_same_delta() -> None:
    text, finish, _ = feed(make(["three"]), [TokenDelta(ids("one two three"), FinishReason.LENGTH)])
    assert (text, finish) == ("one two ", Finish("stop", "three"))


def test_cached_tokens_are_kept_from_the_delta_that_tells_them() -> None:
    choice = make()
    choice.push(TokenDelta(ids("a"), cached_tokens=7))
    choice.push(TokenDelta(ids("b")))
    assert choice.cached_tokens == 7


def test_a_stop_string_in_thoughts_or_calls_does_not_end_the_choice() -> None:
    grammar = AnswerGrammar(ParserNames("hermes", "think"), Tools({"f": {}}))
    text = '<think>one</think>one <tool_call>{"name": "f", "arguments": {"x": "one"}}</tool_call>'
    for stops, content, word in ((["never"], "one", "tool_calls"), (["one"], "", "stop")):
        detokenizer = Detokenizer(tiny_model().tokenizer, [], True)
        parser = AnswerParser(grammar, lambda: "id")
        choice = ChoiceText(detokenizer, StopStrings(stops, False), 0, frozenset({EOS}), parser)
        delta = choice.push(TokenDelta([*ids(text), EOS], FinishReason.STOP))
        assert delta.text == content
        assert Reasoning("one") in delta.events
        assert choice.finish is not None
        assert choice.finish.reason == word


def test_what_is_held_back_for_a_stop_string_comes_before_the_call_that_follows() -> None:
    grammar = AnswerGrammar(ParserNames("hermes", "none"), Tools({"f": {}}))
    detokenizer = Detokenizer(tiny_model().tokenizer, [], True)
    parser = AnswerParser(grammar, lambda: "id")
    choice = ChoiceText(detokenizer, StopStrings(["one"], False), 0, frozenset({EOS}), parser)
    delta = choice.push(TokenDelta([*ids('on<tool_call>{"name": "f"}</tool_call>e'), EOS], FinishReason.STOP))
    assert delta.events[:2] == [Content("on"), CallBegan("f", "id", 0)]
    assert (delta.text, choice.finish) == ("one", Finish("tool_calls"))
