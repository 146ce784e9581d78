"""Stop strings: the result is that of a search in the whole text, and only what may matter is held back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.stop_strings import StopStrings

letters = st.text(alphabet="ab<", max_size=40)
patterns = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The earliest end wins, of equal ends the longest string."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            found = max(matches, key=len)
            return (text[:end] if include else text[: end - len(found)]), found
    return text, None


def feed(scanner: StopStrings, pieces: list[str]) -> tuple[str, str | None]:
    out = ""
    for piece in pieces:
        scan = scanner.push(piece, armed=True)
        scanner.check_invariants()
        out += scan.text
        if scan.matched is not None:
            return out, scan.matched
    return out + scanner.finish(), None


@given(pieces=st.lists(letters, max_size=8), stops=patterns, include=st.booleans())
def test_any_pieces_give_what_a_search_of_the_whole_text_gives(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert feed(StopStrings(stops, include), pieces) == reference("".join(pieces), stops, include)


def test_every_short_pattern_is_found_in_every_short_text() -> None:
    stops = ["".join(word) for n in (1, 2, 3, 4) for word in itertools.product("ab", repeat=n)]
    texts = ["".join(word) for word in itertools.product("ab<", repeat=7)]
    for stop in stops:
        for text in texts:
            assert (StopStrings([stop], False).push(text, armed=True).matched is not None) == (stop in text)


@given(pieces=st.lists(letters, max_size=8), stops=patterns)
def test_what_is_held_back_is_the_longest_suffix_that_may_become_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    scanner = StopStrings(stops, include_in_output=False)
    text = out = ""
    for piece in pieces:
        text += piece
        scan = scanner.push(piece, armed=True)
        if scan.matched is not None:
            return
        out += scan.text
        longest = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        assert out == text[: len(text) - longest]


def test_a_stop_string_across_pieces_is_cut_once_and_nothing_is_repeated() -> None:
    # BR-a08
    assert feed(StopStrings(["><"], False), ["<b>", "<i>", "more"]) == ("<b", "><")


def test_nothing_that_follows_a_match_comes_out() -> None:
    # BR-a07
    scanner = StopStrings(["five"], include_in_output=False)
    assert scanner.push("four, five, six", armed=True).text == "four, "
    assert scanner.finish() == ""


def test_included_stop_string_ends_the_text_once() -> None:
    # BR-a19
    assert feed(StopStrings(["END"], True), ["it EN", "D and on"]) == ("it END", "END")


def test_with_inclusion_nothing_is_held_back() -> None:
    assert StopStrings(["END"], True).push("it EN", armed=True).text == "it EN"


@pytest.mark.parametrize(("later", "expected"), [("bcd", ("", "abcd")), ("bc!", ("abc!", None))])
def test_a_match_in_unarmed_text_is_passed_over_and_may_still_begin_another(
    later: str, expected: tuple[str, str | None]
) -> None:
    scanner = StopStrings(["a", "abcd"], include_in_output=False)
    first = scanner.push("a", armed=False)
    assert (first.text, first.matched) == ("", None)
    second = scanner.push(later, armed=True)
    assert (first.text + second.text + ("" if second.matched else scanner.finish()), second.matched) == expected


def test_a_hard_pattern_takes_linear_time() -> None:
    scanner = StopStrings(["a" * 1000 + "b"] * 2, include_in_output=False)
    assert scanner.push("a" * 100_000, armed=True).text == "a" * 99_000


def test_no_stop_string_goes_across_an_interruption() -> None:
    stops = StopStrings(["abc"], False)
    assert stops.push("xab", True).text == "x"
    assert stops.release() == "ab"
    stops.check_invariants()
    assert stops.push("c ab", True).text == "c "
    assert stops.push("c", True).matched == "abc"
