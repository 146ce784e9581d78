"""Changes of a running cluster, as the supervisor's core carries them out."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deploy.control_messages import ControlRequest, Drain, RestartRolling, Scale
from deploy.supervised_process import ALIVE, ProcessState, Role
from deploy.supervisor_core import KILL_GRACE_S, Supervisor
from deploy.supervisor_events import (
    AnnounceOverdue,
    AnnounceReady,
    AnnounceRestart,
    Answer,
    Command,
    Event,
    Exited,
    Finish,
    Kill,
    Ready,
    Report,
    Requested,
    Start,
    StopRequested,
    TellCoordinator,
    Terminate,
    TimePassed,
)

PROCESSES = [
    ("coordinator", Role.COORDINATOR),
    ("engine-0", Role.ENGINE_CORE),
    ("engine-1", Role.ENGINE_CORE),
    ("api-0", Role.API_SERVER),
]
DRAIN_S = 30.0


class Driver:
    """A cluster that serves; `told` are the commands that are not for the operator."""

    def __init__(self) -> None:
        self.core = Supervisor(PROCESSES, DRAIN_S)
        self.core.start(0.0)
        self.reports: list[str] = []
        self.answers: list[Answer] = []
        assert [self.tell(Ready(name)) for name, _ in PROCESSES][-1] == [AnnounceReady()]

    def tell(self, event: Event, now_s: float = 1.0) -> list[Command]:
        commands = self.core.handle(event, now_s)
        self.core.check_invariants()
        self.reports += [command.text for command in commands if isinstance(command, Report)]
        self.answers += [command for command in commands if isinstance(command, Answer)]
        return [command for command in commands if not isinstance(command, Report | Answer)]

    def ask(self, request: ControlRequest, now_s: float = 1.0) -> list[Command]:
        return self.tell(Requested(request, 7), now_s)


def test_a_drained_process_is_gone_and_not_started_again() -> None:
    driver = Driver()
    assert driver.ask(Drain("engine-1")) == [Terminate("engine-1")]
    assert driver.core.next_deadline_s() == 1.0 + DRAIN_S + KILL_GRACE_S
    assert driver.tell(Exited("engine-1", 0)) == [TellCoordinator("engine-1")]
    assert driver.core.state("engine-1") is None
    assert driver.answers == [Answer(7, True, "done")]
    assert driver.tell(StopRequested()) == [Terminate("api-0")]


def test_who_does_not_drain_in_time_is_killed_and_the_change_goes_on() -> None:
    driver = Driver()
    driver.ask(Drain("engine-1"))
    overdue_s = 1.0 + DRAIN_S + KILL_GRACE_S
    assert driver.tell(TimePassed(), overdue_s - 0.1) == []
    assert driver.tell(TimePassed(), overdue_s) == [AnnounceOverdue("engine-1"), Kill("engine-1")]
    assert driver.core.next_deadline_s() is None
    driver.tell(Exited("engine-1", -9), overdue_s)
    assert driver.answers == [Answer(7, True, "done")]


def test_a_rolling_restart_from_end_to_end() -> None:
    driver = Driver()
    assert driver.ask(RestartRolling()) == [Terminate("engine-0")]
    for name, following in (("engine-0", [Terminate("engine-1")]), ("engine-1", [Start("api-1")])):
        assert driver.tell(Exited(name, 0)) == [TellCoordinator(name), Start(name)]
        assert driver.tell(Ready(name)) == following
    assert driver.tell(Ready("api-1")) == [Terminate("api-0")]
    assert driver.tell(Exited("api-0", 0)) == [TellCoordinator("api-0"), Terminate("coordinator")]
    assert driver.tell(Exited("coordinator", 0)) == [Start("coordinator")]
    assert driver.tell(Ready("coordinator")) == []
    assert driver.answers == [Answer(7, True, "done")]
    assert driver.reports == [
        *("draining engine-0", "draining engine-1", "starting api-1", "draining api-0", "draining coordinator"),
    ]


def test_a_newcomer_that_cannot_start_ends_the_change_and_nothing_else() -> None:
    driver = Driver()
    assert driver.ask(Scale(engines=3)) == [Start("engine-2")]
    assert driver.tell(Exited("engine-2", 2)) == [TellCoordinator("engine-2")]
    assert driver.answers == [Answer(7, False, "engine-2 ended with exit code 2 before it was ready")]
    assert driver.core.count(Role.ENGINE_CORE) == 2 and not driver.core.is_ending


def test_a_newcomer_that_has_served_is_restarted_as_any_other() -> None:
    driver = Driver()
    driver.ask(Scale(engines=3))
    driver.tell(Ready("engine-2"))
    commands = driver.tell(Exited("engine-2", -9))
    assert Start("engine-2") in commands and any(isinstance(each, AnnounceRestart) for each in commands)


def test_a_restart_stops_at_the_first_process_that_does_not_come_back() -> None:
    driver = Driver()
    driver.ask(RestartRolling())
    driver.tell(Exited("engine-0", 0))
    commands = driver.tell(Exited("engine-0", 1))
    assert Terminate("engine-1") not in commands and Start("engine-0") in commands
    (answer,) = driver.answers
    assert not answer.ok and "engine-0 ended with exit code 1" in answer.text
    assert driver.tell(Ready("engine-0")) == []


def test_one_change_at_a_time_and_none_before_the_cluster_serves_or_while_it_ends() -> None:
    core = Supervisor(PROCESSES, DRAIN_S)
    core.start(0.0)
    assert core.handle(Requested(RestartRolling(), 1), 0.0) == [Answer(1, False, "the cluster still starts")]
    driver = Driver()
    driver.ask(Drain("engine-0"))
    assert driver.ask(Drain("engine-1")) == []
    assert driver.answers == [Answer(7, False, "another change is under way")]
    driver.tell(StopRequested())
    assert driver.answers[-1] == Answer(7, False, "the cluster is ending")
    driver.ask(Drain("engine-1"))
    assert driver.answers[-1] == Answer(7, False, "the cluster is ending")


def test_the_end_of_all_waits_for_one_that_drains_already_and_does_not_ask_it_twice() -> None:
    driver = Driver()
    driver.ask(Drain("engine-0"))
    assert driver.tell(StopRequested()) == [Terminate("api-0")]
    assert driver.tell(Exited("api-0", 0)) == [TellCoordinator("api-0"), Terminate("engine-1")]
    driver.tell(Exited("engine-1", 0))
    assert Terminate("coordinator") in driver.tell(Exited("engine-0", 0))


def test_a_process_that_waits_for_its_restart_is_drained_at_once() -> None:
    driver = Driver()
    driver.tell(Exited("engine-0", 1))
    driver.tell(Exited("engine-0", 1))
    assert driver.core.state("engine-0") is ProcessState.BACKING_OFF
    assert driver.ask(Drain("engine-0")) == []
    assert driver.core.state("engine-0") is None and driver.answers[-1].ok


class AnyRollout(RuleBasedStateMachine):
    """Changes, deaths and stops in any order: every request has one answer, every process an end."""

    @initialize()
    def start(self) -> None:
        self.now_s = 0.0
        self.core = Supervisor(PROCESSES, DRAIN_S)
        self.alive: set[str] = set()
        self.open: set[int] = set()
        self.tickets = 0
        self.finished = False
        self.carry_out(self.core.start(0.0))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            assert not self.finished
            match command:
                case Start(name):
                    assert name not in self.alive
                    self.alive.add(name)
                case Terminate(name) | Kill(name):
                    assert name in self.alive
                case Answer(ticket):
                    self.open.remove(ticket)
                case Finish():
                    assert not self.alive
                    self.finished = True

    @rule(seconds=st.sampled_from([0.0, 0.6, 5.0, 40.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.carry_out(self.core.handle(TimePassed(), self.now_s))

    @precondition(lambda self: not self.finished)
    @rule(
        request=st.sampled_from(
            [Drain("engine-0"), Drain("api-1"), RestartRolling(), Scale(1, 1), Scale(4), Scale(None, 3), Scale(2, 2)]
        )
    )
    def change(self, request: ControlRequest) -> None:
        self.tickets += 1
        self.open.add(self.tickets)
        self.carry_out(self.core.handle(Requested(request, self.tickets), self.now_s))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def all_are_ready(self, data: st.DataObject) -> None:
        for name in sorted(self.alive):
            self.carry_out(self.core.handle(Ready(name), self.now_s))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 1, -9]))
    def some_process_exits(self, data: st.DataObject, code: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(name)
        self.carry_out(self.core.handle(Exited(name, code), self.now_s))

    @precondition(lambda self: self.alive)
    @rule()
    def who_was_asked_to_exits(self) -> None:
        for name in sorted(self.alive):
            if self.core.state(name) in (ProcessState.ENDING, ProcessState.KILLED):
                self.alive.remove(name)
                self.carry_out(self.core.handle(Exited(name, 0), self.now_s))

    @precondition(lambda self: self.tickets > 3 and not self.finished)
    @rule()
    def stop_is_requested(self) -> None:
        self.carry_out(self.core.handle(StopRequested(), self.now_s))

    @invariant()
    def core_agrees_with_the_world(self) -> None:
        self.core.check_invariants()
        assert all(self.core.state(name) in ALIVE for name in self.alive)
        assert len(self.open) <= 1
        assert not (self.finished and self.open)

    @invariant()
    def something_will_happen(self) -> None:
        assert self.finished or self.alive or self.core.next_deadline_s() is not None


AnyRollout.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestAnyRollout = AnyRollout.TestCase
