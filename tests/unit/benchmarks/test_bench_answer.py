import json

import pytest
from scripted_server import DONE, chunk, event, usage_of

from benchmarks import answer
from benchmarks.answer import AnswerError, FailureKind, StreamedAnswer, WholeAnswer


def read(*parts: bytes) -> StreamedAnswer:
    """Part i arrives at i seconds."""
    stream = StreamedAnswer()
    for time_s, part in enumerate(parts):
        stream.feed(part, float(time_s))
        stream.check_invariants()
    return stream


def failure_of(*parts: bytes) -> FailureKind:
    with pytest.raises(AnswerError) as caught:
        read(*parts).end(9.0)
    return caught.value.failure.kind


def test_the_role_chunk_is_not_the_first_token() -> None:
    stream = read(chunk("", role="assistant"), chunk(role="assistant"), chunk("a"), chunk("b"))
    assert stream.content_times_s == [2.0, 3.0]


def test_reasoning_tool_calls_and_completions_text_are_content() -> None:
    text = event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    call = chunk(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    stream = read(chunk(reasoning_content="hm"), chunk(reasoning="hm"), call, text)
    assert stream.content_times_s == [0.0, 1.0, 2.0, 3.0]


def test_an_answer_is_whole_at_done() -> None:
    stream = read(chunk("a"), chunk(finish_reason="stop"), event({"choices": [], "usage": usage_of(7, 1, 5)}), DONE)
    stream.end(9.0)
    assert stream.whole_at_s == 3.0
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens, stream.usage.cached_tokens) == (7, 1, 5)


def test_a_null_error_or_usage_is_none() -> None:
    stream = read(event({"choices": [], "error": None, "usage": None}))
    assert stream.usage.completion_tokens is None


def test_a_stream_without_done_has_failed() -> None:
    assert failure_of(chunk("a"), chunk(finish_reason="stop")) is FailureKind.NO_DONE


def test_a_stream_without_finish_reason_has_failed() -> None:
    assert failure_of(chunk("a"), DONE) is FailureKind.NO_FINISH_REASON
    assert failure_of(chunk("a")) is FailureKind.NO_FINISH_REASON
    assert failure_of(DONE) is FailureKind.NO_FINISH_REASON
    assert failure_of() is FailureKind.NO_FINISH_REASON


def test_every_choice_needs_a_finish_reason() -> None:
    second = event({"choices": [{"index": 1, "delta": {"content": "x"}}]})
    assert failure_of(chunk("a"), second, chunk(finish_reason="stop"), DONE) is FailureKind.NO_FINISH_REASON


@pytest.mark.parametrize("error", [event({"error": {"message": "no"}}), b'event: error\ndata: {"message": "no"}\n\n'])
def test_an_error_event_fails_the_request(error: bytes) -> None:
    assert failure_of(chunk("a"), error) is FailureKind.ERROR_EVENT


@pytest.mark.parametrize("junk", [b"data: {\n\n", b"data: []\n\n", event({"choices": [{"delta": {"content": 5}}]})])
def test_what_is_no_chunk_is_malformed(junk: bytes) -> None:
    assert failure_of(junk) is FailureKind.MALFORMED


def test_nothing_may_follow_done() -> None:
    assert failure_of(chunk("a", "stop"), DONE, chunk("b")) is FailureKind.MALFORMED


def whole(payload: object) -> WholeAnswer:
    body = WholeAnswer()
    encoded = json.dumps(payload).encode()
    body.feed(encoded[:10], 1.0)
    body.feed(encoded[10:], 2.0)
    body.end(3.0)
    return body


def test_a_body_has_usage_and_an_end_but_no_token_times() -> None:
    body = whole({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage_of(3, 1)})
    assert (body.whole_at_s, body.content_times_s, body.has_content) == (3.0, [], True)
    assert body.usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"error": {"message": "no"}}, FailureKind.ERROR_EVENT),
        ({"choices": []}, FailureKind.NO_FINISH_REASON),
        ({"choices": [{"message": {"content": "a"}}]}, FailureKind.NO_FINISH_REASON),
        ([], FailureKind.MALFORMED),
    ],
)
def test_a_body_that_is_no_answer_fails(payload: object, kind: FailureKind) -> None:
    with pytest.raises(AnswerError) as caught:
        whole(payload)
    assert caught.value.failure.kind is kind


def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_BODY_BYTES", 100)
    body = WholeAnswer()
    with pytest.raises(AnswerError):
        for _ in range(11):
            body.feed(b" " * 10, 0.0)
