"""The client side of the cluster, event by event."""

from collections.abc import Iterator

import msgspec
import pytest
from client_core_driver import ENGINE, HELLO, KEY, OTHER, Driver, R, welcomed_driver

from api_server import unacknowledged
from api_server.client_events import (
    Abandon,
    AdmissionTimedOut,
    Admit,
    DeadlinePassed,
    Deliver,
    Fail,
    FailAll,
    Forget,
    Leave,
    LinkDown,
    LinkUp,
    NotSent,
    Placed,
    Refuse,
    SecondPassed,
    Send,
    Submit,
)
from api_server.live_generation import GenerationState, IllegalMove, LiveGeneration
from api_server.placement import Placement
from protocol.codec import pack_token_ids
from protocol.heartbeats import SILENCE_S
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    Abort,
    Accepted,
    ClientHello,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineLost,
    EngineRun,
    FinishReason,
    Heartbeat,
    Refused,
    Rejected,
    RejectReason,
    RequestKey,
    RouteReason,
)
from protocol.sampling import SamplingParams


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Connected and welcomed."""
    driver = welcomed_driver()
    yield driver
    driver.core.check_invariants()


def sent_request(driver: Driver, index: int = 0) -> Send:
    request = EngineCoreRequest(R, ClientIndex(index), 0, "demo", 3, SamplingParams(8), 1.0)
    return Send(request, (pack_token_ids([1, 2, 3]),))


def test_a_generation_is_submitted_accepted_streamed_and_ended(driver: Driver) -> None:
    assert driver.submit() == [sent_request(driver)]
    assert driver.accept() == [Admit(R)]
    assert driver.outputs(EngineCoreOutput(R, 0, 0, [7, 8], cached_tokens=2)) == [Deliver(R, [7, 8], cached_tokens=2)]
    assert driver.output(2, [9], FinishReason.LENGTH) == [Deliver(R, [9], FinishReason.LENGTH)]
    assert driver.core.num_generations == 0


def test_a_finish_without_tokens_is_delivered(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    finish = EngineCoreOutput(R, 0, 0, [], FinishReason.STOP, stop_reason=5)
    assert driver.outputs(finish) == [Deliver(R, [], FinishReason.STOP, stop_reason=5)]


def test_outputs_may_overtake_the_acceptance(driver: Driver) -> None:
    driver.submit()
    assert driver.output(0, [7]) == [Admit(R), Deliver(R, [7])]
    assert driver.accept() == []
    assert driver.output(1, [8], FinishReason.STOP) == [Deliver(R, [8], FinishReason.STOP)]


def test_a_whole_generation_may_overtake_its_acceptance_which_aborts_nothing(driver: Driver) -> None:
    driver.submit()
    assert driver.output(0, [7], FinishReason.STOP) == [Admit(R), Deliver(R, [7], FinishReason.STOP)]
    assert driver.accept() == []


def test_what_is_there_already_is_dropped(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.output(0, [7, 8])
    assert driver.output(0, [7, 8]) == []
    assert driver.output(1, [8, 9, 10]) == [Deliver(R, [9, 10])]


def test_an_engine_core_that_was_given_up_for_a_while_goes_on_without_a_gap(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.output(0, [7])
    driver.tell(EngineLost(EngineIndex(0), ENGINE, "not heard from for 3 s"))
    driver.outputs(EngineCoreOutput(R, 0, 1, [8]))  # it was stopped, and did not know
    other = RequestId("cmpl-2")
    driver.submit(other)
    driver.accept(RequestKey(other))
    assert driver.outputs(EngineCoreOutput(other, 0, 0, [7])) == [Deliver(other, [7])]


def test_what_was_addressed_to_the_old_index_is_dropped_and_the_new_one_counts_from_0(driver: Driver) -> None:
    other = RequestId("cmpl-2")
    driver.submit()
    driver.accept()
    driver.output(0, [7])
    driver.welcome(index=4)
    driver.submit(other)
    driver.accept(RequestKey(other))
    late = EngineCoreOutput(R, 0, 1, [8], FinishReason.STOP)
    assert driver.tell(EngineCoreOutputs(EngineIndex(0), ENGINE, 5, 0.0, [late], ClientIndex(0))) == []
    assert driver.outputs(EngineCoreOutput(other, 0, 0, [9])) == [Deliver(other, [9])]


def test_a_coordinator_that_says_nothing_does_not_answer(driver: Driver) -> None:
    assert driver.core.is_cluster_answering(driver.now_s)
    driver.now_s += SILENCE_S - 0.1
    assert driver.core.is_cluster_answering(driver.now_s)
    driver.now_s += 0.1
    assert not driver.core.is_cluster_answering(driver.now_s), "it may be stopped: its connection stays"
    assert driver.submit(), "requests are sent as ever"
    driver.tell(Heartbeat())
    assert driver.core.is_cluster_answering(driver.now_s)
    driver.tell(LinkDown())
    assert not driver.core.is_cluster_answering(driver.now_s)


def test_more_tokens_than_asked_for_fail_the_generation(driver: Driver) -> None:
    driver.submit(max_tokens=2)
    driver.accept()
    assert driver.output(0, [1, 2, 3])[0] == Fail(R, "the engine core sent more tokens than were asked for", True)


def test_outputs_of_another_attempt_or_another_engine_core_are_dropped(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    assert driver.outputs(EngineCoreOutput(R, 1, 0, [7])) == []
    assert driver.outputs(EngineCoreOutput(R, 0, 0, [7]), incarnation=OTHER) == []


def test_an_error_of_the_engine_core_fails_the_generation_after_its_tokens(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    output = EngineCoreOutput(R, 0, 0, [7], FinishReason.ERROR, error="token id 99 is out of range")
    assert driver.outputs(output) == [Deliver(R, [7]), Fail(R, "token id 99 is out of range", False)]


def test_a_rejection_is_terminal(driver: Driver) -> None:
    driver.submit()
    rejected = Rejected(KEY, RejectReason.OVERLOADED, "too much", 2.5)
    assert driver.tell(rejected) == [Refuse(R, RejectReason.OVERLOADED, "too much", 2.5)]
    assert driver.tell(rejected) == []
    assert driver.core.num_generations == 0


def test_a_model_that_a_new_coordinator_has_not_met_yet_is_not_unknown(driver: Driver) -> None:
    driver.submit()
    rejected = Rejected(KEY, RejectReason.UNKNOWN_MODEL, "no engine core has served it")
    assert driver.tell(rejected) == [Refuse(R, RejectReason.NO_ENGINE, "no engine core has served it", 1.0)]


def test_an_abandoned_generation_is_aborted_once_and_its_late_outputs_are_dropped(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    assert driver.tell(Abandon([R, R])) == [Forget(R), Send(Abort([KEY]))]
    assert driver.tell(Abandon([R])) == []
    assert driver.output(0, [7]) == []


def test_an_engine_core_that_goes_on_after_an_abort_is_told_again_once_a_second(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.tell(Abandon([R]))
    driver.now_s += 1.1
    assert driver.output(0, [7]) == [Send(Abort([KEY]))]
    assert driver.output(1, [8]) == []


def test_many_abandoned_generations_are_one_abort(driver: Driver) -> None:
    ids = [RequestId(f"cmpl-{number}") for number in range(3)]
    for request_id in ids:
        driver.submit(request_id)
    commands = driver.tell(Abandon(ids))
    assert commands[-1] == Send(Abort([RequestKey(request_id) for request_id in ids]))
    assert [type(command) for command in commands] == [Forget, Forget, Forget, Send]


def test_without_a_coordinator_a_submission_waits_and_goes_out_after_the_welcome() -> None:
    driver = Driver()
    assert driver.submit() == []
    driver.tell(LinkUp())
    assert driver.welcome(index=3) == [sent_request(driver, index=3)]


def test_what_was_never_sent_is_not_aborted() -> None:
    driver = Driver()
    driver.submit()
    assert driver.tell(Abandon([R])) == [Forget(R)]
    driver.tell(LinkUp())
    assert driver.welcome() == []


def test_an_unanswered_submission_is_sent_again_to_the_next_coordinator(driver: Driver) -> None:
    driver.submit()
    driver.tell(LinkDown())
    assert driver.tell(LinkUp())[0] == Send(msgspec.structs.replace(HELLO, client_index=ClientIndex(0), greeting=2))
    assert driver.welcome(Incarnation("coordinator-2")) == [sent_request(driver)]
    assert driver.accept() == [Admit(R)]


def test_answers_that_an_older_connection_left_behind_are_passed_over(driver: Driver) -> None:
    driver.submit()
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    driver.welcome(greeting=2)
    assert driver.tell(Accepted(KEY, EngineIndex(0), ENGINE, greeting=2)) == [Admit(R)]
    assert driver.tell(Accepted(KEY, EngineIndex(1), OTHER, greeting=1)) == [], (
        "another coordinator's choice, read late"
    )
    assert driver.outputs(EngineCoreOutput(R, 0, 0, [7])) == [Deliver(R, [7])]


def test_a_refusal_that_an_older_connection_left_behind_is_passed_over(driver: Driver) -> None:
    driver.submit()
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    driver.welcome(greeting=2)
    assert driver.tell(Rejected(KEY, RejectReason.NO_ENGINE, "none", greeting=1)) == []
    assert driver.tell(Accepted(KEY, EngineIndex(0), ENGINE, greeting=2)) == [Admit(R)]


def test_a_welcome_that_an_older_connection_left_behind_is_passed_over(driver: Driver) -> None:
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    driver.submit()
    assert driver.welcome(index=7, greeting=1) == [], "the second Hello has not been answered"
    [sent] = driver.welcome(index=3, greeting=2)
    assert isinstance(sent, Send) and isinstance(sent.message, EngineCoreRequest)
    assert driver.welcome(index=7, greeting=1) == [], "nothing is lost under the index that counts"
    assert driver.core.is_welcomed


def test_an_accepted_generation_streams_on_without_a_coordinator_and_is_named_in_the_next_hello(
    driver: Driver,
) -> None:
    driver.submit()
    driver.accept()
    driver.tell(LinkDown())
    assert driver.output(0, [7]) == [Deliver(R, [7])]
    (hello,) = driver.tell(LinkUp())
    assert isinstance(hello, Send)
    assert isinstance(hello.message, ClientHello)
    assert hello.message.engines == [EngineRun(EngineIndex(0), ENGINE)]
    assert driver.welcome(Incarnation("coordinator-2")) == []
    assert driver.output(1, [8], FinishReason.STOP) == [Deliver(R, [8], FinishReason.STOP)]


def test_the_answer_of_the_next_coordinator_decides_between_two_engine_cores(driver: Driver) -> None:
    driver.submit()
    driver.output(0, [7, 8])
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    driver.welcome(Incarnation("coordinator-2"))
    assert driver.accept(incarnation=OTHER) == []
    assert driver.output(2, [9]) == []
    assert driver.outputs(EngineCoreOutput(R, 0, 0, [7, 8, 9]), incarnation=OTHER) == [Deliver(R, [9])]


def test_until_the_answer_comes_the_outputs_of_either_engine_core_count(driver: Driver) -> None:
    driver.submit()
    driver.output(0, [7, 8])
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    driver.welcome(Incarnation("coordinator-2"))
    whole = EngineCoreOutput(R, 0, 0, [7, 8, 9], FinishReason.STOP)
    assert driver.outputs(whole, incarnation=OTHER) == [Deliver(R, [9], FinishReason.STOP)]


def test_an_abort_without_a_coordinator_is_kept_for_the_next_one(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.tell(LinkDown())
    assert driver.tell(Abandon([R])) == [Forget(R)]
    driver.tell(LinkUp())
    assert driver.welcome() == [Send(Abort([KEY]))]


def test_a_late_welcome_of_a_broken_connection_is_ignored(driver: Driver) -> None:
    driver.submit()
    driver.tell(LinkDown())
    assert driver.welcome() == []
    assert not driver.core.is_welcomed


def test_an_unanswered_submission_is_refused_in_time_and_taken_back(driver: Driver) -> None:
    driver.submit()
    commands = driver.tell(AdmissionTimedOut(R))
    assert isinstance(commands[0], Refuse)
    assert commands[1:] == [Send(Abort([KEY]))]
    assert driver.tell(AdmissionTimedOut(R)) == []


def test_an_acceptance_in_time_makes_the_timeout_void(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    assert driver.tell(AdmissionTimedOut(R)) == []


def test_a_full_queue_to_the_coordinator_is_a_refusal(driver: Driver) -> None:
    driver.submit()
    refusal = driver.tell(NotSent(R))[0]
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RejectReason.NO_ENGINE


def test_what_could_not_be_sent_because_the_link_broke_waits(driver: Driver) -> None:
    driver.submit()
    driver.tell(LinkDown())
    assert driver.tell(NotSent(R)) == []
    driver.tell(LinkUp())
    assert driver.welcome() == [sent_request(driver)]


def test_too_many_unanswered_submissions_are_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unacknowledged, "MAX_UNACKNOWLEDGED", 2)
    driver = Driver()
    for number in range(2):
        driver.submit(RequestId(f"cmpl-{number}"))
    (refusal,) = driver.submit(RequestId("cmpl-2"))
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RejectReason.OVERLOADED


def test_too_many_unanswered_prompt_bytes_are_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unacknowledged, "MAX_UNACKNOWLEDGED_BYTES", 23)
    driver = Driver()
    assert driver.submit() == []
    assert isinstance(driver.submit(RequestId("cmpl-2"))[0], Refuse)
    driver.tell(Abandon([R]))
    assert driver.submit(RequestId("cmpl-3")) == []


def test_shutdown_ends_every_generation_in_its_own_way(driver: Driver) -> None:
    unanswered = RequestId("cmpl-2")
    driver.submit()
    driver.accept()
    driver.submit(unanswered)
    commands = driver.tell(FailAll("shutting down"))
    assert commands[0] == Fail(R, "shutting down", True)
    assert isinstance(commands[1], Refuse)
    assert commands[2:] == [Send(Abort([KEY, RequestKey(unanswered)]))]
    assert driver.core.num_generations == 0


def test_heartbeats_go_out_only_while_there_is_a_connection(driver: Driver) -> None:
    assert driver.tell(SecondPassed()) == [Send(Heartbeat())]
    driver.tell(LinkDown())
    assert driver.tell(SecondPassed()) == []


def test_a_refused_hello_ends_the_process(driver: Driver) -> None:
    assert driver.tell(Refused("protocol version 1, not 2")) == [Leave("protocol version 1, not 2")]


def test_an_illegal_move_raises_with_the_history() -> None:
    generation = LiveGeneration(Submit(R, "demo", b"", SamplingParams(1), 0.0))
    with pytest.raises(IllegalMove, match="WAITING -> STREAMING"):
        generation.move(GenerationState.STREAMING)


# --- where it runs ---


def test_what_the_coordinator_goes_by_travels_with_the_request(driver: Driver) -> None:
    placement = Placement("session", 3, b"k" * 16)
    prompt = pack_token_ids(range(64))
    (send,) = driver.tell(Submit(R, "demo", prompt, SamplingParams(8), 1.0, placement=placement))
    assert isinstance(send, Send)
    assert isinstance(send.message, EngineCoreRequest)
    assert (send.message.session_key, send.message.engine_rank) == ("session", 3)
    assert send.buffers == (prompt, b"k" * 16)


def test_where_a_generation_runs_and_why_is_told_once(driver: Driver) -> None:
    driver.submit()
    accepted = Accepted(KEY, EngineIndex(2), ENGINE, 64, RouteReason.AFFINITY)
    assert driver.tell(accepted) == [Placed(R, EngineIndex(2), RouteReason.AFFINITY, 64), Admit(R)]
    assert driver.tell(accepted) == []


def test_it_is_told_too_when_outputs_overtook_the_answer(driver: Driver) -> None:
    driver.submit()
    driver.output(0, [5])
    accepted = Accepted(KEY, EngineIndex(2), ENGINE, 0, RouteReason.LOAD)
    assert driver.tell(accepted) == [Placed(R, EngineIndex(2), RouteReason.LOAD, 0)]


# --- deadlines ------------------------------------------------------------------------------------------------


def test_an_engine_core_that_runs_out_of_time_ends_the_generation_with_what_there_is(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.output(0, [5])
    assert driver.output(1, [], FinishReason.TIMEOUT) == [Deliver(R, [], FinishReason.TIMEOUT)]
    assert driver.tell(DeadlinePassed(R)) == []


def test_a_deadline_that_passes_unheard_of_ends_the_generation_here(driver: Driver) -> None:
    driver.submit()
    driver.accept()
    driver.output(0, [5])
    assert driver.tell(DeadlinePassed(R)) == [Deliver(R, [], FinishReason.TIMEOUT), Send(Abort([KEY]))]
    assert driver.output(1, [6]) == []


def test_a_deadline_that_passes_before_admission_is_a_refusal(driver: Driver) -> None:
    driver.submit()
    refuse, abort = driver.tell(DeadlinePassed(R))
    assert isinstance(refuse, Refuse) and refuse.reason is RejectReason.TIMED_OUT
    assert abort == Send(Abort([KEY]))
