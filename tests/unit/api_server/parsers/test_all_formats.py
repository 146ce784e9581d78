"""What holds for every format: the calls come out whole, whatever they hold and however the text was cut."""

import itertools
from typing import get_args

import pytest
from format_samples import CALLS, SAMPLES, Sample
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parsed_answer import Answer, answer_of, decoded, make_parser, parse, put_together

from api_server.parsers.catalog import THINK_MARKERS, TOOL_FORMATS
from api_server.parsers.events import CallEnded
from api_server.parsers.harmony import MARKERS as HARMONY_MARKERS
from api_server.parsers.names import ToolParserName

EVERY = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
NAMES = sorted(set(get_args(ToolParserName)) - {"auto", "none"})
FRAGMENTS = sorted(
    {marker for tool_format in TOOL_FORMATS.values() for marker in tool_format.markers}
    | {marker for pair in THINK_MARKERS.values() for marker in pair.all}
    | set(HARMONY_MARKERS)
    | {'{"name": "now", "arguments": {}}', '{"name": "f", "arguments": ', '{"a": "}', "[now()]", "now", "[", "call:"}
    | {"functions.now:0", "city", "3", "{", "}", '"', "\\", ":", ",", "(", ")", "\n", " ", "x", "to=functions.now"}
)
MOST_OF_A_MARKER = 27
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def test_every_format_has_a_sample() -> None:
    assert {sample.tools for sample in SAMPLES.values()} == set(NAMES)


@EVERY
def test_calls_come_out_whole(sample: Sample) -> None:
    # BR-c03, BR-c05, BR-c06, BR-c07
    events = parse(make_parser(sample.tools), [sample.text])
    answer = put_together(events)
    assert decoded(answer) == CALLS
    assert (answer.content, answer.reasoning) == ("", "")
    assert sum(isinstance(event, CallEnded) for event in events) == len(CALLS)


@EVERY
def test_text_before_and_after_is_content_without_markup(sample: Sample) -> None:
    answer = answer_of(make_parser(sample.tools), f"{sample.before}\n{sample.text}\n")
    assert (decoded(answer), answer.content) == (CALLS, "Well." if sample.before else "")


@EVERY
def test_each_cut_gives_the_same_events(sample: Sample) -> None:
    # BR-c01, BR-c02, BR-c18
    text = sample.before + sample.text
    whole = parse(make_parser(sample.tools), [text])
    assert parse(make_parser(sample.tools), text) == whole
    for index in range(0, len(text), 7):
        assert parse(make_parser(sample.tools), [text[:index], text[index:]]) == whole
    for size in (2, 5, 16):
        assert parse(make_parser(sample.tools), [text[i : i + size] for i in range(0, len(text), size)]) == whole


@EVERY
def test_a_cut_off_answer_is_a_beginning_of_the_whole_one(sample: Sample) -> None:
    # BR-c23
    whole = answer_of(make_parser(sample.tools), sample.before + sample.text)
    for length in range(0, len(sample.text), 2):
        events = parse(make_parser(sample.tools), [sample.before + sample.text[:length]], is_cut_off=True)
        part = put_together(events)
        ended = sum(isinstance(event, CallEnded) for event in events)
        assert ended <= len(part.calls) <= ended + 1
        assert part.calls[:ended] == whole.calls[:ended]
        assert [name for name, _ in part.calls] == [name for name, _ in whole.calls[: len(part.calls)]]
        if part.calls:  # before, calls without a marker are text, and half a marker is
            assert part.content.startswith(whole.content)
            assert len(part.content) < len(whole.content) + MOST_OF_A_MARKER
            assert '"' not in part.content


@EVERY
def test_an_answer_that_ends_early_by_itself_ends_its_calls(sample: Sample) -> None:
    for length in range(0, len(sample.text), 5):
        events = parse(make_parser(sample.tools), [sample.text[:length]])
        assert sum(isinstance(event, CallEnded) for event in events) == len(put_together(events).calls)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 10_000), max_size=12), is_cut_off=st.booleans(), opened=st.booleans())
@example(text="<think>a <tool_call>", cuts=[9], is_cut_off=False, opened=False)
def test_any_text_in_any_pieces_gives_the_same_events(
    name: str, text: str, cuts: list[int], is_cut_off: bool, opened: bool
) -> None:
    reasoning = "think" if name not in ("harmony", "granite", "gemma4", "mistral") else name
    whole = parse(make_parser(name, reasoning, opened), [text], is_cut_off)
    put_together(whole)
    assert parse(make_parser(name, reasoning, opened), cut(text, cuts), is_cut_off) == whole
    assert parse(make_parser(name, reasoning, opened), text, is_cut_off) == whole


@pytest.mark.parametrize("name", [name for name in NAMES if name != "harmony"])
@settings(max_examples=20)
@given(text=st.text(alphabet="abc <[{|:>)\n", max_size=30))
def test_text_without_a_call_is_content_to_the_letter(name: str, text: str) -> None:
    assert answer_of(make_parser(name), text) == Answer(content=text)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_a_marker_is_not_held_back(name: str) -> None:
    parser = make_parser(name)
    assert put_together(parser.feed("Hello, world.")).content == "Hello, world."
    assert put_together(parser.feed(" a < b")).content == " a < b"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("letter", ["{", "[", "<", '{"', "[[", "(", "\\", "call:"])
def test_a_deep_or_long_answer_neither_fails_nor_takes_long(name: str, letter: str) -> None:
    text = SAMPLES.get(name, SAMPLES["llama3"]).text[:60] + letter * 5_000
    put_together(parse(make_parser(name), [text[i : i + 7] for i in range(0, len(text), 7)]))
