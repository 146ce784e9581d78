"""What becomes of generations whose engine core, or part of whose output, is lost: event by event."""

from collections.abc import Iterator

import pytest
from client_core_driver import ENGINE, KEY, OTHER, RESUME_TIMEOUT_S, Driver, R, welcomed_driver

from api_server import verdict
from api_server.client_events import (
    Command,
    Deliver,
    Fail,
    FailAll,
    LinkDown,
    LinkUp,
    NotSent,
    ResumeCause,
    Resumed,
    SecondPassed,
    Send,
)
from api_server.verdict import POISON_AFTER_DEATHS, POISON_AFTER_FAULTS
from protocol.codec import unpack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    Abort,
    Cleared,
    ClientHello,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineLost,
    FinishReason,
    Rejected,
    RejectReason,
    RequestKey,
    RequestsLost,
)

SECOND = RequestId("cmpl-2")


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = welcomed_driver()
    yield driver
    driver.core.check_invariants()


def lose(driver: Driver, incarnation: Incarnation = ENGINE, by_fault: bool = False) -> list[Command]:
    return driver.tell(EngineLost(EngineIndex(0), incarnation, "its process has exited", by_fault))


def sent(commands: list[Command]) -> list[tuple[EngineCoreRequest, list[int]]]:
    """The requests among these commands, each with what it is computed from."""
    return [
        (command.message, list(unpack_token_ids(command.buffers[0])))
        for command in commands
        if isinstance(command, Send) and isinstance(command.message, EngineCoreRequest)
    ]


def start(driver: Driver, request_id: RequestId = R, incarnation: Incarnation = ENGINE) -> None:
    driver.submit(request_id)
    driver.accept(RequestKey(request_id), incarnation)


def test_after_a_death_it_goes_on_behind_its_own_tokens(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7, 8])
    commands = lose(driver)
    assert commands[0] == Resumed(R, ResumeCause.ENGINE_LOST)
    ((request, prompt),) = sent(commands)
    assert prompt == [1, 2, 3, 7, 8]
    assert (request.attempt, request.num_prompt_tokens, request.num_output_tokens) == (1, 5, 2)
    assert request.sampling.max_tokens == 8, "it is the total"
    assert driver.accept(RequestKey(R, 1), OTHER) == [], "admitted long ago"
    went_on = EngineCoreOutput(R, 1, 2, [9], FinishReason.STOP)
    assert driver.outputs(went_on, incarnation=OTHER) == [Deliver(R, [9], FinishReason.STOP)]


def test_without_tokens_it_starts_again(driver: Driver) -> None:
    start(driver)
    ((request, prompt),) = sent(lose(driver))
    assert (prompt, request.attempt, request.num_output_tokens) == ([1, 2, 3], 1, 0)


def test_only_what_the_dead_engine_core_had_is_resumed_and_only_once(driver: Driver) -> None:
    start(driver)
    start(driver, SECOND, OTHER)
    assert [request.request_id for request, _ in sent(lose(driver))] == [R]
    assert lose(driver) == []


def test_what_an_older_attempt_still_sends_is_dropped(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7])
    lose(driver)
    assert driver.output(1, [8]) == []
    driver.accept(RequestKey(R, 1), ENGINE)
    assert driver.output(1, [8]) == [], "the same engine core, taken back, but the older attempt"
    assert driver.outputs(EngineCoreOutput(R, 1, 1, [8]))[0] == Deliver(R, [8])


def test_a_gap_in_the_positions_is_resumed_from_before_it(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7])
    commands = driver.output(2, [9])
    assert commands[0] == Resumed(R, ResumeCause.OUTPUTS_LOST)
    assert sent(commands)[0][1] == [1, 2, 3, 7]
    assert driver.output(3, [10]) == []


def test_a_negative_position_is_resumed(driver: Driver) -> None:
    start(driver)
    assert driver.output(-1, [7, 8])[0] == Resumed(R, ResumeCause.OUTPUTS_LOST)


def test_a_lost_message_resumes_the_generations_of_its_engine_core_only(driver: Driver) -> None:
    start(driver)
    start(driver, SECOND, OTHER)
    assert [request.request_id for request, _ in sent(driver.outputs(lost=1))] == [R]


def test_a_message_without_outputs_shows_that_those_before_it_are_lost(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7])
    assert driver.outputs() == [], "nothing is missing"
    assert [request.num_output_tokens for request, _ in sent(driver.outputs(lost=1))] == [1]


def test_an_engine_core_that_shuts_down_hands_over_what_it_has_not_finished(driver: Driver) -> None:
    start(driver)
    output = EngineCoreOutput(R, 0, 0, [7], FinishReason.ABORT, error="engine core shut down")
    commands = driver.outputs(output)
    assert commands[:2] == [Deliver(R, [7]), Resumed(R, ResumeCause.ENGINE_DRAINED)]
    assert sent(commands)[0][1] == [1, 2, 3, 7]


def test_being_given_up_and_taken_back_resumes_all_that_was_accepted(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7])
    start(driver, SECOND, OTHER)
    requests = [request for request, _ in sent(driver.welcome(index=4))]
    assert [(each.request_id, each.attempt, each.client_index) for each in requests] == [(R, 1, 4), (SECOND, 1, 4)]


def test_under_a_new_index_a_loss_is_noticed_from_0_on(driver: Driver) -> None:
    start(driver)
    for position in range(5):
        driver.output(position, [7])
    driver.welcome(index=4)
    driver.accept(RequestKey(R, 1))
    assert driver.outputs(lost=1)[0] == Resumed(R, ResumeCause.OUTPUTS_LOST)


def test_what_waited_for_an_answer_under_the_old_index_is_sent_once_under_the_new_one(driver: Driver) -> None:
    start(driver)
    driver.submit(SECOND)
    driver.tell(LinkDown())
    driver.tell(LinkUp())
    requests = [request for request, _ in sent(driver.welcome(index=4))]
    assert sorted((each.request_id, each.attempt, each.client_index) for each in requests) == [
        (R, 1, 4),
        (SECOND, 0, 4),
    ]


def test_the_hello_lists_what_was_accepted_and_what_was_left_nowhere_is_resumed(driver: Driver) -> None:
    start(driver)
    driver.submit(SECOND)
    driver.tell(LinkDown())
    (hello,) = driver.tell(LinkUp())
    assert isinstance(hello, Send)
    assert isinstance(hello.message, ClientHello)
    assert hello.message.requests == [(KEY, ENGINE)]
    driver.welcome(Incarnation("coordinator-2"))
    commands = driver.tell(RequestsLost([KEY, RequestKey(SECOND)]))
    assert commands[0] == Resumed(R, ResumeCause.REQUEST_LOST)
    assert [request.request_id for request, _ in sent(commands)] == [R], "the other one is on its way"
    assert driver.tell(RequestsLost([KEY])) == [], "an older attempt"


def test_an_engine_core_that_cannot_reach_us_loses_all_that_it_has_of_us(driver: Driver) -> None:
    start(driver)
    assert driver.tell(RequestsLost([], all_of=Incarnation("another"))) == []
    commands = driver.tell(RequestsLost([], all_of=ENGINE))
    assert commands[0] == Resumed(R, ResumeCause.REQUEST_LOST)
    assert [request.attempt for request, _ in sent(commands)] == [1]


def test_a_lost_engine_core_while_there_is_no_coordinator_is_resumed_by_the_next(driver: Driver) -> None:
    start(driver)
    driver.output(0, [7])
    driver.tell(LinkDown())
    assert sent(driver.outputs(lost=1)) == []
    driver.tell(LinkUp())
    assert [prompt for _, prompt in sent(driver.welcome(Incarnation("coordinator-2")))] == [[1, 2, 3, 7]]


def test_with_all_its_tokens_there_only_the_end_is_missing(driver: Driver) -> None:
    driver.submit(max_tokens=2)
    driver.accept()
    driver.output(0, [7, 8])
    assert lose(driver)[0] == Deliver(R, [], FinishReason.LENGTH)
    assert driver.core.num_generations == 0


@pytest.mark.parametrize("reason", RejectReason)
def test_what_cannot_be_placed_is_tried_again_each_second_until_its_time_is_up(
    driver: Driver, reason: RejectReason
) -> None:
    start(driver)
    driver.output(0, [7])
    lose(driver)
    assert driver.tell(Rejected(RequestKey(R, 1), reason, "nowhere")) == []
    driver.now_s += 1
    (again,) = sent(driver.tell(SecondPassed()))
    assert again[0].key == RequestKey(R, 1)
    assert sent(driver.tell(SecondPassed())) == [], "it is on its way"
    driver.now_s += RESUME_TIMEOUT_S
    commands = driver.tell(SecondPassed())
    assert Fail(R, "no engine core could go on with it within 20 s", True) in commands
    assert driver.core.num_generations == 0


def test_a_resume_that_cannot_be_sent_is_tried_again(driver: Driver) -> None:
    start(driver)
    lose(driver)
    assert driver.tell(NotSent(R)) == []
    assert [request.key for request, _ in sent(driver.tell(SecondPassed()))] == [RequestKey(R, 1)]


def test_an_engine_core_in_time_makes_the_deadline_void(driver: Driver) -> None:
    start(driver)
    lose(driver)
    driver.accept(RequestKey(R, 1), OTHER)
    driver.now_s += 2 * RESUME_TIMEOUT_S
    driver.tell(SecondPassed())
    assert driver.core.num_generations == 1


def die_in_a_row(driver: Driver, request_id: RequestId, attempts: range, by_fault: bool = True) -> list[Command]:
    commands: list[Command] = []
    for attempt in attempts:
        incarnation = Incarnation(f"run-{attempt}")
        driver.accept(RequestKey(request_id, attempt), incarnation)
        commands = lose(driver, incarnation, by_fault)
    return commands


def test_one_that_engine_cores_keep_dying_of_fails_alone_and_is_named(driver: Driver) -> None:
    driver.submit()
    commands = die_in_a_row(driver, R, range(POISON_AFTER_FAULTS))
    assert failures(commands) == [
        Fail(R, "request cmpl-1 was running when 3 engine cores died one after another", False)
    ]


def test_engine_cores_that_were_killed_from_outside_count_less(driver: Driver) -> None:
    driver.submit()
    assert not failures(die_in_a_row(driver, R, range(POISON_AFTER_DEATHS - 1), by_fault=False))
    (failure,) = failures(die_in_a_row(driver, R, range(POISON_AFTER_DEATHS - 1, POISON_AFTER_DEATHS), by_fault=False))
    assert "8 engine cores" in failure.message, "the kernel kills from outside, too, when memory is short"


def test_that_an_engine_core_died_by_itself_may_be_known_later(driver: Driver) -> None:
    driver.submit()
    die_in_a_row(driver, R, range(POISON_AFTER_FAULTS), by_fault=False)
    for number in range(POISON_AFTER_FAULTS - 1):
        assert lose(driver, Incarnation(f"run-{number}"), by_fault=True) == []
        assert lose(driver, Incarnation(f"run-{number}"), by_fault=True) == [], "said twice"
    assert lose(driver, Incarnation("another"), by_fault=True) == []
    assert len(failures(lose(driver, Incarnation("run-2"), by_fault=True))) == 1


def failures(commands: list[Command]) -> list[Fail]:
    return [command for command in commands if isinstance(command, Fail)]


def test_new_tokens_clear_it(driver: Driver) -> None:
    driver.submit()
    for attempt in range(10):
        incarnation = Incarnation(f"run-{attempt}")
        driver.accept(RequestKey(R, attempt), incarnation)
        if attempt % 2:
            driver.outputs(EngineCoreOutput(R, attempt, attempt // 2, [7]), incarnation=incarnation)
        assert not any(isinstance(command, Fail) for command in lose(driver, incarnation))


def test_the_coordinator_is_told_of_deaths_and_of_the_token_that_clears(driver: Driver) -> None:
    driver.submit()
    ((request, _),) = sent(die_in_a_row(driver, R, range(2)))
    assert (request.attempt, request.deaths) == (2, 2)
    driver.accept(RequestKey(R, 2), OTHER)
    token = EngineCoreOutput(R, 2, 0, [7])
    assert driver.outputs(token, incarnation=OTHER) == [Deliver(R, [7]), Send(Cleared([RequestKey(R, 2)]))]
    assert driver.outputs(EngineCoreOutput(R, 2, 1, [8]), incarnation=OTHER) == [Deliver(R, [8])]


def test_the_number_of_attempts_is_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MAX_ATTEMPTS", 3)
    start(driver)
    driver.output(0, [7])
    for attempt in (1, 2):
        assert isinstance(driver.outputs(lost=1)[0], Resumed)
        driver.accept(RequestKey(R, attempt))
    assert driver.outputs(lost=1)[0] == Fail(R, "request cmpl-1 lost 3 engine cores", True)


def test_shutdown_ends_what_is_being_resumed(driver: Driver) -> None:
    start(driver)
    lose(driver)
    assert driver.tell(FailAll("shutting down")) == [Fail(R, "shutting down", True), Send(Abort([RequestKey(R, 1)]))]


def test_outputs_under_the_old_index_are_dropped_after_a_resume(driver: Driver) -> None:
    start(driver)
    driver.welcome(index=4)
    late = EngineCoreOutput(R, 1, 0, [8])
    assert driver.tell(EngineCoreOutputs(EngineIndex(0), ENGINE, 5, 0.0, [late], ClientIndex(0))) == []
