"""Thoughts: where they begin and end, and what a tool call in them means."""

import pytest
from parsed_answer import Answer, answer_of, make_parser, parse
from parsed_answer import put_together as together

from api_server.parsers.catalog import THINK_MARKERS

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
NOW = (("now", "{}"),)

PAIRS = pytest.mark.parametrize("name", sorted(THINK_MARKERS))


@PAIRS
@pytest.mark.parametrize("opened", [False, True])
def test_thoughts_are_reasoning_and_the_rest_is_content(name: str, opened: bool) -> None:
    # BR-d01, BR-d02
    markers = THINK_MARKERS[name]
    for opening, closing in zip(markers.opens, markers.closes, strict=True):
        text = ("" if opened else opening) + f"\nOne.\n\nTwo.\n{closing}\n\nThe answer.\n"
        expected = Answer("The answer.\n", "One.\n\nTwo.")
        assert answer_of(make_parser("none", name, opened), text) == expected
        assert together(parse(make_parser("none", name, opened), text)) == expected


@PAIRS
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_thoughts_that_are_never_closed_are_thoughts(name: str, is_cut_off: bool) -> None:
    # BR-d13
    text = f"{THINK_MARKERS[name].opens[0]} Hm, so\n"
    assert answer_of(make_parser("none", name), text, is_cut_off) == Answer(reasoning="Hm, so")


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("No thoughts.", False, Answer("No thoughts.")),
        ("\n No thoughts.", False, Answer("\n No thoughts.")),
        ("<think>\n\n</think>\n\nHi", False, Answer("Hi")),
        ("\n\n</think>\n\nHi", True, Answer("Hi")),
        ("</think>\n\nHi", False, Answer("Hi")),
        ("<think>a</think>Hi", True, Answer("Hi", "a")),
        ("<think>a</think>\n<think>b</think>Hi", False, Answer("Hi", "ab")),
        ("<think>a <b> </thin k></think>Hi", False, Answer("Hi", "a <b> </thin k>")),
        ("The tags <think> and </think> mark thoughts.", False, Answer("The tags <think> and </think> mark thoughts.")),
        ("<thin", False, Answer("<thin")),
        ("a</thi", True, Answer(reasoning="a</thi")),
        ("", True, Answer()),
    ],
)
def test_where_thoughts_begin_and_end(text: str, opened: bool, expected: Answer) -> None:
    # BR-d18
    assert answer_of(make_parser("none", "think", opened), text) == expected


def test_a_call_after_the_thoughts_is_a_call() -> None:
    text = f"<think>Let me see.</think>\n\nOne moment.\n{CALL}"
    assert answer_of(make_parser("hermes", "think"), text) == Answer("One moment.", "Let me see.", NOW)


@pytest.mark.parametrize("opened", [False, True])
def test_a_call_in_thoughts_that_are_closed_is_a_thought(opened: bool) -> None:
    # BR-d06
    text = ("" if opened else "<think>") + f"I could write {CALL}\n</think>{CALL}"
    assert answer_of(make_parser("hermes", "think", opened), text) == Answer("", f"I could write {CALL}", NOW)


def test_a_call_in_thoughts_that_are_not_closed_is_a_call() -> None:
    # BR-d05
    assert answer_of(make_parser("hermes", "think"), f"<think>plan {CALL}") == Answer("", "plan", NOW)


def test_a_call_in_thoughts_that_the_length_limit_cuts_off_is_a_thought() -> None:
    answer = answer_of(make_parser("hermes", "think"), f"<think>plan {CALL} or", is_cut_off=True)
    assert answer == Answer("", f"plan {CALL} or")


def test_what_only_begins_like_a_call_in_unclosed_thoughts_is_a_thought() -> None:
    text = "<think>the <tool_call> tag"
    assert answer_of(make_parser("hermes", "think"), text) == Answer(reasoning="the <tool_call> tag")


def test_without_tools_nothing_in_thoughts_is_held_back() -> None:
    parser = make_parser("hermes", "think", offered=None)
    assert together(parser.feed("<think>a <tool_call> b")) == Answer(reasoning="a <tool_call> b")


def test_thoughts_come_out_as_they_come_in() -> None:
    parser = make_parser("none", "think", opened=True)
    assert together(parser.feed("One two ")) == Answer(reasoning="One two")
    assert together(parser.feed("three <")) == Answer(reasoning=" three")
    assert together(parser.feed("b>")) == Answer(reasoning=" <b>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
            Answer("Hi", "Hm."),
        ),
        ("<|channel|>final<|message|>Hi<|return|>", Answer("Hi")),
        ("<|channel|>commentary<|message|>First I look.<|end|>", Answer("First I look.")),
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", Answer(reasoning="1+1")),
        ("<|channel|>commentary to=browser.search<|message|>x<|call|>", Answer(reasoning="x")),
        (" to be continued", Answer(" to be continued")),
        ("<|channel|>analysis", Answer()),
    ],
)
def test_harmony_channels(text: str, expected: Answer) -> None:
    assert answer_of(make_parser("harmony", "harmony"), text) == expected


def test_a_harmony_call_without_tools_is_content() -> None:
    text = "<|channel|>commentary to=functions.f<|message|>{}"
    assert answer_of(make_parser("harmony", "harmony", offered=None), text) == Answer("{}")
