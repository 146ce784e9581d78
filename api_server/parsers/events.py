"""What parsers find. Events of one answer, in order, with pieces that are to be joined."""

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    """Text of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Text of the thoughts."""

    text: str


class CallBegan(msgspec.Struct, frozen=True, gc=False):
    """A tool call; its arguments follow. Calls do not overlap."""

    name: str
    call_id: str | None = None
    """From a grammar: the id that the model gave it, in formats that have one. Always set by `AnswerParser`."""
    index: int = 0
    """Number of the call in the answer; set by `AnswerParser`, as in the pieces of its arguments."""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """A piece of the present call's arguments, JSON text when joined."""

    text: str
    index: int = 0


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """The present call is whole. Missing when the length limit cut it off."""


Event = Content | Reasoning | CallBegan | CallArguments | CallEnded


def append_joined(events: list[Event], event: Event) -> None:
    """Appends the event, joined with the last one where both are pieces of one thing; empty pieces are left out."""
    last = events[-1] if events else None
    match event, last:
        case (Content() | Reasoning() | CallArguments()) as piece, _ if not piece.text:
            return
        case Content(text), Content(before):
            events[-1] = Content(before + text)
        case Reasoning(text), Reasoning(before):
            events[-1] = Reasoning(before + text)
        case CallArguments(text), CallArguments(before, index):
            events[-1] = CallArguments(before + text, index)
        case _:
            events.append(event)
