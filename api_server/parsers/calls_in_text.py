"""Where calls stand in an answer: behind a marker anywhere in its text, or at its very beginning."""

from collections.abc import Callable

from api_server.parsers.events import Content
from api_server.parsers.source import Markers, Source, Steps, copy_trimmed, skip_spaces

ReadCalls = Callable[[Source, str], Steps[bool]]
"""Reads the calls behind a start marker; whether there is one. The mark stands there until a call has begun."""


def text_with_calls(
    source: Source, starts: Markers, ends: Markers, read_calls: ReadCalls, after_call: bool = False
) -> Steps[None]:
    """The rest of an answer. `ends` are markers that mean nothing behind a call and are left out there."""
    starts_and_ends = Markers(*starts.all, *ends.all)
    while True:
        markers = starts_and_ends if after_call else starts
        has_text, spaces, marker = yield from copy_trimmed(source, markers, lambda text: (Content(text),))
        if marker is None:
            if spaces and (has_text or not after_call):
                yield Content(spaces)
            return
        if after_call and marker in ends.all:
            continue
        source.mark()
        after_call = yield from read_calls(source, marker)
        if not after_call:
            source.give_up()
            if not source.is_cut_off:
                yield Content(spaces + marker)


def calls_at_start(source: Source, read_calls: Callable[[Source], Steps[bool]]) -> Steps[bool]:
    """Calls that an answer begins with, without any marker. Whether there is one; with none nothing is taken."""
    source.mark()
    yield from skip_spaces(source)
    found = yield from read_calls(source)
    if not found:
        source.rewind()
    source.commit()
    return found
