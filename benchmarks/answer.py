"""What comes back for one request, read as it arrives: streams of chunks, or one JSON body.

The fields are those of the OpenAI API reference (chat completion chunk, completion chunk, usage); what servers add to
them is ignored. A stream counts as whole only with a finish reason for each choice *and* the closing `[DONE]`: some
servers end a request that they gave up on as a clean, short, silent stream, which must not count as success.
"""

import enum
from typing import Protocol

import msgspec

from benchmarks.sse import SseError, SseEvent, SseParser

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed."""


class FailureKind(enum.StrEnum):
    """Why a request counts as failed."""

    HTTP = "http"
    """A status other than 200."""
    CONNECT = "connect"
    """No connection could be made."""
    DISCONNECTED = "disconnected"
    """The connection broke before the answer was whole."""
    TIMEOUT = "timeout"
    ERROR_EVENT = "error_event"
    """The server reported an error inside a 200 answer."""
    NO_FINISH_REASON = "no_finish_reason"
    """The answer ended cleanly without saying why."""
    NO_DONE = "no_done"
    """The stream ended cleanly without `[DONE]`."""
    MALFORMED = "malformed"
    """Not server-sent events, not JSON, or JSON of another shape."""


class Failure(msgspec.Struct, frozen=True):
    """How a request failed."""

    kind: FailureKind
    detail: str = ""
    status: int = 0
    """HTTP status, for kind HTTP."""

    @property
    def label(self) -> str:
        """The key under which it is counted: `http_429`, `timeout`, ..."""
        return f"http_{self.status}" if self.kind is FailureKind.HTTP else self.kind.value


class AnswerError(Exception):
    """Reading on makes no sense."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server gives them; None for what it does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server took from its cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Text(msgspec.Struct, frozen=True, gc=False):
    """A delta or a message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, frozen=True, gc=False):
    index: int = 0
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        """Whether the model has said something here: a role alone is not content."""
        said = self.delta or self.message
        if said is None:
            return bool(self.text)
        return bool(said.content or said.reasoning_content or said.reasoning or said.tool_calls)


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: object = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class Answer(Protocol):
    """One answer while it is read."""

    content_type: str
    """What the response must be."""
    usage: Usage
    content_times_s: list[float]
    """When each event with content arrived; empty for an answer that is not streamed."""
    has_content: bool
    """Whether the model said anything."""
    whole_at_s: float | None
    """When the last needed byte arrived; None while the answer is not whole."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes bytes of the body. Raises AnswerError."""

    def end(self, now_s: float) -> None:
        """The body has ended cleanly. Raises AnswerError when something was missing."""


class StreamedAnswer:
    """Reads a stream of chunks."""

    def __init__(self) -> None:
        self.content_type = "text/event-stream"
        self.usage = Usage()
        self.content_times_s: list[float] = []
        self.has_content = False
        self.whole_at_s: float | None = None
        self._parser = SseParser()
        self._open_choices: set[int] = set()
        self._finished_choices: set[int] = set()

    def feed(self, data: bytes, now_s: float) -> None:
        """See Answer."""
        try:
            events = self._parser.feed(data)
        except SseError as error:
            raise AnswerError(Failure(FailureKind.MALFORMED, str(error))) from error
        for event in events:
            self._take_event(event, now_s)

    def _take_event(self, event: SseEvent, now_s: float) -> None:
        if self.whole_at_s is not None:
            raise AnswerError(Failure(FailureKind.MALFORMED, "an event after [DONE]"))
        if event.data == b"[DONE]":
            self._require_finish_reasons()
            self.whole_at_s = now_s
            return
        chunk = _decode(event.data)
        if chunk.error is not None or event.name == b"error":
            raise AnswerError(Failure(FailureKind.ERROR_EVENT, _excerpt(event.data)))
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self._open_choices.add(choice.index)
            if choice.finish_reason is not None:
                self._finished_choices.add(choice.index)
        if any(choice.has_content for choice in chunk.choices):
            self.has_content = True
            self.content_times_s.append(now_s)

    def end(self, now_s: float) -> None:
        """See Answer."""
        if self.whole_at_s is None:
            self._require_finish_reasons()
            raise AnswerError(Failure(FailureKind.NO_DONE, "the stream ended without [DONE]"))

    def _require_finish_reasons(self) -> None:
        if not self._finished_choices or self._open_choices != self._finished_choices:
            detail = f"the stream ended without a finish reason, after {len(self.content_times_s)} events with content"
            raise AnswerError(Failure(FailureKind.NO_FINISH_REASON, detail))

    def check_invariants(self) -> None:
        """For tests."""
        self._parser.check_invariants()
        assert self._finished_choices <= self._open_choices
        assert self.content_times_s == sorted(self.content_times_s)
        assert self.whole_at_s is None or self._finished_choices == self._open_choices != set()


class WholeAnswer:
    """Reads an answer that comes as one JSON body; knows no time but that of its end."""

    def __init__(self) -> None:
        self.content_type = "application/json"
        self.usage = Usage()
        self.content_times_s: list[float] = []
        self.has_content = False
        self.whole_at_s: float | None = None
        self._parts: list[bytes] = []
        self._received_bytes = 0

    def feed(self, data: bytes, now_s: float) -> None:
        """See Answer."""
        self._received_bytes += len(data)
        if self._received_bytes > MAX_BODY_BYTES:
            raise AnswerError(Failure(FailureKind.MALFORMED, f"a body of more than {MAX_BODY_BYTES} bytes"))
        self._parts.append(data)

    def end(self, now_s: float) -> None:
        """See Answer."""
        body = b"".join(self._parts)
        chunk = _decode(body)
        if chunk.error is not None:
            raise AnswerError(Failure(FailureKind.ERROR_EVENT, _excerpt(body)))
        if not chunk.choices or any(choice.finish_reason is None for choice in chunk.choices):
            raise AnswerError(Failure(FailureKind.NO_FINISH_REASON, "a choice without a finish reason"))
        self.usage = chunk.usage or self.usage
        self.has_content = any(choice.has_content for choice in chunk.choices)
        self.whole_at_s = now_s


def _decode(data: bytes) -> _Chunk:
    try:
        return _chunk_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise AnswerError(Failure(FailureKind.MALFORMED, f"{error}: {_excerpt(data)}")) from error


def _excerpt(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace")
