import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import sse
from benchmarks.sse import SseError, SseEvent, SseParser


def parse(stream: bytes, cuts: list[int] | None = None) -> list[SseEvent]:
    parser = SseParser()
    events = []
    borders = [0, *sorted(cuts or []), len(stream)]
    for start, end in itertools.pairwise(borders):
        events += parser.feed(stream[start:end])
        parser.check_invariants()
    return events


@pytest.mark.parametrize("eol", [b"\n", b"\r", b"\r\n"])
def test_lines_end_with_lf_cr_or_crlf(eol: bytes) -> None:
    assert parse(b"data: a" + eol + eol + b"data: b" + eol + eol) == [SseEvent(b"a"), SseEvent(b"b")]


def test_data_lines_are_joined_with_newlines() -> None:
    assert parse(b"data: a\ndata:\ndata: b\n\n") == [SseEvent(b"a\n\nb")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert parse(b"data:  a\n\ndata:b\n\n") == [SseEvent(b" a"), SseEvent(b"b")]


def test_comments_ids_and_retries_are_no_events() -> None:
    assert parse(b": keep-alive\n\nid: 7\nretry: 10\n\n:\n\ndata: a\n\n") == [SseEvent(b"a")]


def test_an_event_name_holds_for_one_event() -> None:
    assert parse(b"event: error\ndata: a\n\ndata: b\n\n") == [SseEvent(b"a", b"error"), SseEvent(b"b")]


def test_a_name_without_data_is_no_event() -> None:
    assert parse(b"event: ping\n\ndata: b\n\n") == [SseEvent(b"b")]


def test_a_field_without_colon_has_an_empty_value() -> None:
    assert parse(b"data\n\n") == [SseEvent(b"")]


def test_a_byte_order_mark_at_the_start_is_skipped_and_later_is_content() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n") == [SseEvent(b"a"), SseEvent(b"\xef\xbb\xbfb")]


def test_an_unfinished_event_is_not_given_out() -> None:
    assert parse(b"data: a\n\ndata: b\n") == [SseEvent(b"a")]


def test_separators_of_other_alphabets_do_not_end_a_line() -> None:
    text = "x\x0b\x0c\x1c\x85\u2028y".encode()
    assert parse(b"data: " + text + b"\n\n") == [SseEvent(text)]


def test_an_event_ends_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\r") == [SseEvent(b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [SseEvent(b"b")]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    stream = b"data: a\r\ndata: b\r\n\r\n"
    assert parse(stream, list(range(len(stream)))) == [SseEvent(b"a\nb")]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    with pytest.raises(SseError):
        for _ in range(11):
            parser.feed(b"data: abcd\n")


def test_many_short_events_are_not_taken_for_one_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    assert len(parse(b"data: abcd\n\n" * 100)) == 100


@given(
    st.lists(st.sampled_from([b"data", b"event", b":", b" ", b"\r", b"\n", b"\xef\xbb\xbf", b"\xc3", b"\xa9"])),
    st.data(),
)
def test_cuts_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream))))
    assert parse(stream, cuts) == parse(stream)


line_text = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(
    st.lists(st.tuples(st.lists(line_text, min_size=1), st.sampled_from([None, "ping", "error"]), st.booleans())),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.data(),
)
def test_what_is_written_is_read(
    events: list[tuple[list[str], str | None, bool]], eol: bytes, data: st.DataObject
) -> None:
    stream = b""
    for lines, name, commented in events:
        stream += b": comment" + eol if commented else b""
        stream += b"event: " + name.encode() + eol if name else b""
        stream += b"".join(b"data: " + line.encode() + eol for line in lines) + eol
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    expected = [SseEvent("\n".join(lines).encode(), (name or "message").encode()) for lines, name, _ in events]
    assert parse(stream, cuts) == expected
