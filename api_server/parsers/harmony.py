"""The response format of gpt-oss (OpenAI, "Harmony response format"): messages on channels.

<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>

A message to functions.NAME is a tool call. The prompt ends behind <|start|>assistant; the model's last marker,
<|return|> or <|call|>, ends the generation and does not reach the text.
"""

import re

from api_server.parsers.events import Content, Reasoning
from api_server.parsers.json_text import named_call
from api_server.parsers.source import (
    Emit,
    Markers,
    Source,
    Steps,
    accept_after_spaces,
    collect_until,
    copy_trimmed,
    copy_until,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")

_RECIPIENT = re.compile(r"to=(?P<name>[\w.\-]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(?P<name>\w+)")
_HEADER_STARTS = Markers(START, CHANNEL, "to=functions.")
_BETWEEN = Markers(START, CHANNEL, *ENDS)
_HEADER_ENDS = Markers(MESSAGE, *ENDS)
_BODY_ENDS = Markers(START, *ENDS)


def harmony(source: Source, with_calls: bool) -> Steps[None]:
    """The whole answer. Without calls, what is meant for a function is content."""
    marker = yield from accept_after_spaces(source, _HEADER_STARTS)
    while marker is not None or not source.ran_out:
        if marker in (START, CHANNEL, "to=functions."):
            header, end = yield from collect_until(source, _HEADER_ENDS)
            marker = (yield from _message(source, marker + header, with_calls)) if end == MESSAGE else None
        else:  # text outside of messages: the prompt has opened one
            has_text, spaces, marker = yield from copy_trimmed(source, _BETWEEN, lambda text: (Content(text),))
            if has_text and spaces:
                yield Content(spaces)


def _message(source: Source, header: str, with_calls: bool) -> Steps[str | None]:
    """The body of a message, up to the marker that ends it, which is returned."""
    recipient = _RECIPIENT.search(header)
    channel = _CHANNEL.search(header)
    function = recipient["name"].removeprefix("functions.") if recipient is not None else ""
    is_function = recipient is not None and function != recipient["name"]
    if is_function and with_calls:
        return (yield from _call(source, function))
    is_builtin = recipient is not None and not is_function  # the model's own tools, python and browser
    is_thought = is_builtin or (channel is not None and channel["name"] == "analysis")
    emit: Emit = (lambda text: (Reasoning(text),)) if is_thought else (lambda text: (Content(text),))
    return (yield from copy_until(source, _BODY_ENDS, emit))


def _call(source: Source, name: str) -> Steps[str | None]:
    yield from named_call(source, name)
    rest, marker = yield from collect_until(source, _BODY_ENDS)
    if rest.strip():
        yield Content(rest)
    return marker
