"""What the supervisor decides, event by event, without a process or a clock."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deploy.absence import ABSENT_AFTER_S
from deploy.supervised_process import ALIVE, CLEAN_AFTER_S, IllegalMove, ProcessState, Role, SupervisedProcess
from deploy.supervisor_core import FAILURES_BEFORE_READY, KILL_GRACE_S, Supervisor
from deploy.supervisor_events import (
    AnnounceFailure,
    AnnounceHung,
    AnnounceOverdue,
    AnnounceReady,
    AnnounceRestart,
    AskForSnapshot,
    Command,
    Exited,
    Finish,
    Hung,
    Kill,
    Ready,
    Snapshot,
    Start,
    StopRequested,
    TellCoordinator,
    Terminate,
    TimePassed,
)
from protocol.exit_codes import ExitCode
from protocol.identifiers import Incarnation

PROCESSES = [
    ("coordinator", Role.COORDINATOR),
    ("engine-0", Role.ENGINE_CORE),
    ("engine-1", Role.ENGINE_CORE),
    ("api-0", Role.API_SERVER),
]
NAMES = [name for name, _ in PROCESSES]
DRAIN_S = 30.0


def started() -> Supervisor:
    core = Supervisor(PROCESSES, DRAIN_S)
    assert core.start(0.0) == [Start(name) for name in NAMES]
    return core


def serving(now_s: float = 0.0) -> Supervisor:
    core = started()
    for name in NAMES:
        core.handle(Ready(name), now_s)
    return core


def restarts(commands: list[Command]) -> list[float]:
    return [command.delay_s for command in commands if isinstance(command, AnnounceRestart)]


def test_a_hung_process_is_killed_once_and_started_again() -> None:
    core = serving()
    assert core.handle(Hung("engine-0"), 10.0) == [AnnounceHung("engine-0"), Kill("engine-0")]
    assert core.handle(Hung("engine-0"), 10.1) == [], "each snapshot says so, until its exit is seen"
    core.check_invariants()
    assert Start("engine-0") in core.handle(Exited("engine-0", -9), 10.2)
    core.handle(Ready("engine-0"), 11.0)
    assert Kill("engine-0") in core.handle(Hung("engine-0"), 20.0), "the next one can hang, too"


def test_a_process_that_is_not_ready_or_is_being_ended_is_not_killed_for_silence() -> None:
    core = started()
    assert core.handle(Hung("engine-0"), 1.0) == []
    core = serving()
    core.handle(StopRequested(), 2.0)
    core.handle(Exited("api-0", 0), 2.5)
    assert core.handle(Hung("engine-0"), 3.0) == [], "its drain has a deadline"


def test_an_engine_core_that_the_coordinator_never_meets_is_killed() -> None:
    core = serving()
    coordinator = Incarnation("c2")
    assert core.handle(Snapshot(coordinator, frozenset({"engine-1"})), 10.0) == []
    assert core.next_deadline_s() == 10.0 + ABSENT_AFTER_S
    assert core.handle(TimePassed(), 10.0 + ABSENT_AFTER_S) == [AskForSnapshot()]
    killed = [AnnounceHung("engine-0"), Kill("engine-0")]
    assert core.handle(Snapshot(coordinator, frozenset({"engine-1"})), 20.5) == killed
    assert core.handle(Snapshot(coordinator, frozenset({"engine-1"})), 20.6) == [], "its exit is to come"
    core.handle(Exited("engine-0", -9), 20.7)
    assert core.next_deadline_s() is None


def test_the_coordinator_is_told_who_died_by_itself() -> None:
    assert TellCoordinator("engine-0", by_fault=True) in serving().handle(Exited("engine-0", ExitCode.FAULT), 5.0)
    assert TellCoordinator("engine-0", by_fault=True) in serving().handle(Exited("engine-0", -11), 5.0)
    assert TellCoordinator("engine-0", by_fault=False) in serving().handle(Exited("engine-0", -9), 5.0)


def test_ready_is_announced_once_when_all_are_ready() -> None:
    core = started()
    for name in NAMES[:-1]:
        assert core.handle(Ready(name), 1.0) == []
    assert core.handle(Ready(NAMES[-1]), 1.0) == [AnnounceReady()]
    core.handle(Exited("engine-0", -9), 2.0)
    assert core.handle(Ready("engine-0"), 3.0) == []
    core.check_invariants()


def test_dead_engine_core_is_told_to_the_coordinator_and_started_at_once() -> None:
    core = serving()
    commands = core.handle(Exited("engine-0", -9), 5.0)
    assert commands == [
        TellCoordinator("engine-0"),
        AnnounceRestart("engine-0", -9, 0.0, 1),
        Start("engine-0"),
    ]


def test_dead_coordinator_is_started_again_and_not_told_to_itself() -> None:
    assert serving().handle(Exited("coordinator", -9), 5.0) == [
        AnnounceRestart("coordinator", -9, 0.0, 1),
        Start("coordinator"),
    ]


def test_delays_double_up_to_the_longest_and_health_forgets_them() -> None:
    core, now_s, delays = serving(), 5.0, []
    for _ in range(10):
        delays += restarts(core.handle(Exited("api-0", 1), now_s))
        deadline_s = core.next_deadline_s()
        if deadline_s is not None:
            now_s = deadline_s
            assert core.handle(TimePassed(), now_s) == [Start("api-0")]
        now_s += 1.0
        core.handle(Ready("api-0"), now_s)
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restarts(core.handle(Exited("api-0", 1), now_s + 59.0)) == [30]
    core.handle(TimePassed(), now_s + 100.0)
    core.handle(Ready("api-0"), now_s + 100.0)
    assert restarts(core.handle(Exited("api-0", 1), now_s + 160.0)) == [0]


def test_no_restart_before_its_time() -> None:
    core = serving()
    core.handle(Exited("api-0", 1), 5.0)
    core.handle(Exited("api-0", 1), 5.0)
    assert core.next_deadline_s() == 5.5
    assert core.handle(TimePassed(), 5.4) == []
    assert core.handle(TimePassed(), 5.5) == [Start("api-0")]


def test_first_start_that_is_hopeless_ends_everything_with_a_failure() -> None:
    core = started()
    commands = core.handle(Exited("engine-0", 2), 1.0)
    assert [type(command) for command in commands] == [TellCoordinator, AnnounceFailure, Terminate]
    assert finish(core, 1.0) == 1


def test_five_deaths_before_the_first_ready_end_everything() -> None:
    core, now_s = started(), 0.0
    for _ in range(FAILURES_BEFORE_READY - 1):
        assert restarts(core.handle(Exited("engine-0", -11), now_s))
        now_s = core.next_deadline_s() or now_s
        core.handle(TimePassed(), now_s)
    assert any(isinstance(c, AnnounceFailure) for c in core.handle(Exited("engine-0", -11), now_s))
    assert finish(core, now_s) == 1


def test_process_that_was_ready_once_may_fail_for_as_long_as_it_likes() -> None:
    core, now_s = serving(), 0.0
    for _ in range(20):
        commands = core.handle(Exited("engine-0", 2), now_s)
        assert restarts(commands)
        now_s = core.next_deadline_s() or now_s
        core.handle(TimePassed(), now_s)


def finish(core: Supervisor, now_s: float) -> int:
    """Lets every process exit that is alive; returns the exit code."""
    for _ in range(3):
        for name in reversed(NAMES):
            if core.state(name) in ALIVE:
                commands = core.handle(Exited(name, 0), now_s)
                core.check_invariants()
                if isinstance(commands[-1], Finish):
                    return commands[-1].exit_code
    raise AssertionError("never finished")


def test_ending_goes_from_api_servers_over_engine_cores_to_the_coordinator() -> None:
    core = serving()
    assert core.handle(StopRequested(), 10.0) == [Terminate("api-0")]
    assert core.handle(Exited("api-0", 0), 11.0) == [
        TellCoordinator("api-0"),
        Terminate("engine-0"),
        Terminate("engine-1"),
    ]
    assert core.handle(Exited("engine-1", 0), 12.0) == [TellCoordinator("engine-1")]
    assert core.handle(Exited("engine-0", 0), 12.0) == [TellCoordinator("engine-0"), Terminate("coordinator")]
    assert core.handle(Exited("coordinator", 0), 12.0) == [Finish(0)]


def test_process_overdue_in_its_stage_is_killed() -> None:
    core = serving()
    core.handle(StopRequested(), 10.0)
    assert core.next_deadline_s() == 10.0 + DRAIN_S + KILL_GRACE_S
    assert core.handle(TimePassed(), 44.9) == []
    assert core.handle(TimePassed(), 45.0) == [AnnounceOverdue("api-0"), Kill("api-0")]
    assert core.handle(TimePassed(), 46.0) == []
    assert Terminate("engine-0") in core.handle(Exited("api-0", -9), 46.0)
    assert finish(core, 46.0) == ExitCode.FORCED


def test_second_stop_kills_all_that_live() -> None:
    core = serving()
    core.handle(StopRequested(), 10.0)
    assert core.handle(StopRequested(), 11.0) == [Kill(name) for name in NAMES]
    assert core.next_deadline_s() is None
    core.handle(Exited("engine-0", -9), 11.0)
    assert finish(core, 11.0) == ExitCode.FORCED


def test_a_process_that_was_stopped_before_it_could_serve_was_not_killed() -> None:
    core = serving()
    core.handle(StopRequested(), 10.0)
    core.handle(Exited("api-0", -15), 10.0)
    assert finish(core, 10.0) == ExitCode.DRAINED


def test_a_process_that_is_ended_by_hand_is_started_again_at_once_however_often() -> None:
    core, now_s = serving(), 5.0
    for _ in range(10):
        now_s += CLEAN_AFTER_S
        assert restarts(core.handle(Exited("api-0", 0), now_s)) == [0]
        core.handle(Ready("api-0"), now_s)


def test_a_process_that_ends_cleanly_again_and_again_as_soon_as_it_is_there_does_not_spin() -> None:
    core, now_s, delays = serving(), 5.0, []
    for _ in range(4):
        delays += restarts(core.handle(Exited("api-0", 0), now_s))
        now_s += delays[-1]
        core.handle(TimePassed(), now_s)
        core.handle(Ready("api-0"), now_s)
    assert delays[1:] == [0, 0.5, 1]


def test_death_during_the_end_is_not_restarted() -> None:
    core = serving()
    core.handle(StopRequested(), 10.0)
    assert core.handle(Exited("engine-0", -9), 10.5) == [TellCoordinator("engine-0")]
    assert core.state("engine-0") is ProcessState.GONE


def test_stop_while_a_process_waits_for_its_restart() -> None:
    core = serving()
    core.handle(Exited("api-0", 1), 1.0)
    core.handle(Exited("api-0", 1), 1.0)
    assert core.handle(StopRequested(), 1.1) == [Terminate("engine-0"), Terminate("engine-1")]


def test_illegal_move_shows_the_history() -> None:
    process = SupervisedProcess("engine-0", Role.ENGINE_CORE)
    process.move(ProcessState.STARTING)
    process.become_ready(1.0)
    with pytest.raises(IllegalMove, match="engine-0: BACKING_OFF > STARTING > READY > STARTING"):
        process.move(ProcessState.STARTING)


class AnyOrder(RuleBasedStateMachine):
    """Processes that live and die in any order; the world outside carries out what the core says."""

    @initialize()
    def start(self) -> None:
        self.now_s = 0.0
        self.core = Supervisor(PROCESSES, DRAIN_S)
        self.alive: set[str] = set()
        self.finished: int | None = None
        self.carry_out(self.core.start(0.0))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            assert self.finished is None, "a command after the end"
            match command:
                case Start(name):
                    assert name not in self.alive
                    assert not self.core.is_ending
                    self.alive.add(name)
                case Terminate(name) | Kill(name):
                    assert name in self.alive
                case Finish(exit_code):
                    assert not self.alive
                    self.finished = exit_code

    @rule(seconds=st.sampled_from([0.0, 0.4, 1.0, 20.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.carry_out(self.core.handle(TimePassed(), self.now_s))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def some_process_is_ready(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.carry_out(self.core.handle(Ready(name), self.now_s))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 1, -9]))
    def some_process_exits(self, data: st.DataObject, code: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(name)
        self.carry_out(self.core.handle(Exited(name, code), self.now_s))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def some_process_hangs(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.carry_out(self.core.handle(Hung(name), self.now_s))

    @precondition(lambda self: self.alive)
    @rule()
    def stop_is_requested(self) -> None:
        self.carry_out(self.core.handle(StopRequested(), self.now_s))

    @invariant()
    def core_agrees_with_the_world(self) -> None:
        self.core.check_invariants()
        assert {name for name in NAMES if self.core.state(name) in ALIVE} == self.alive
        assert (self.finished is not None) == (self.core.is_ending and not self.alive)

    @invariant()
    def something_will_happen(self) -> None:
        """No process waits for ever: each is alive, or has a deadline, or all is over."""
        if self.finished is None:
            assert self.alive or math.isfinite(self.core.next_deadline_s() or math.inf)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
