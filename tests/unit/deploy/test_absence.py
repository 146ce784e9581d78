"""Engine cores that run, and that the coordinator does not know."""

from deploy.absence import ABSENT_AFTER_S, AbsenceWatch
from protocol.identifiers import Incarnation

FIRST, SECOND = Incarnation("c1"), Incarnation("c2")
RUNNING = ["engine-0", "engine-1"]


def test_one_that_a_coordinator_never_meets_is_absent_when_it_is_asked_once_more() -> None:
    watch = AbsenceWatch()
    assert watch.told(FIRST, ["engine-0"], RUNNING, 100.0) == []
    assert watch.next_deadline_s() == 100.0 + ABSENT_AFTER_S
    assert not watch.has_to_ask(105.9)
    assert watch.has_to_ask(106.0)
    assert watch.next_deadline_s() is None and not watch.has_to_ask(111.0), "once"
    assert watch.told(FIRST, ["engine-0"], RUNNING, 111.0) == ["engine-1"]


def test_nobody_is_absent_while_a_coordinator_says_nothing() -> None:
    watch = AbsenceWatch()
    watch.told(FIRST, [], RUNNING, 100.0)
    assert watch.has_to_ask(200.0)
    assert watch.told(FIRST, RUNNING, RUNNING, 300.0) == []
    assert watch.next_deadline_s() is None


def test_a_new_coordinator_has_time_to_meet_them() -> None:
    watch = AbsenceWatch()
    watch.told(FIRST, [], RUNNING, 100.0)
    assert watch.told(SECOND, [], RUNNING, 105.0) == []
    assert watch.told(SECOND, [], RUNNING, 108.0) == []
    assert watch.next_deadline_s() == 105.0 + ABSENT_AFTER_S


def test_one_that_is_back_or_was_started_again_has_its_time_anew() -> None:
    watch = AbsenceWatch()
    watch.told(FIRST, [], RUNNING, 100.0)
    watch.told(FIRST, ["engine-0"], RUNNING, 103.0)
    watch.forget("engine-1")
    assert watch.next_deadline_s() is None
    assert watch.told(FIRST, [], RUNNING, 108.0) == []


def test_one_that_does_not_run_is_not_missed() -> None:
    watch = AbsenceWatch()
    watch.told(FIRST, [], RUNNING, 100.0)
    assert watch.told(FIRST, [], ["engine-0"], 120.0) == ["engine-0"]
    assert watch.next_deadline_s() == 106.0
