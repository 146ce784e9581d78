"""Decides what the supervisor does: which process to start, restart, end, and when. No clock, no process, no I/O.

Events come in through `Supervisor.handle`, commands come out; `next_deadline_s` says when to call it again with
`TimePassed` if nothing happens before. A process that dies is started again: the first time at once, then after
0.5 s, 1 s, 2 s ... up to 30 s; 60 s of health forget its failures. A process that was never ready and exits with
code 2 (wrong configuration, refused, model cannot be loaded), or dies 5 times, will not get better by itself: all
is ended with exit code 1, so that whatever runs the supervisor sees the failure. Ending goes by stages: API servers
drain first, for their streams need the engine cores; then the engine cores; the coordinator last. What is not gone
by its stage's deadline is killed; a second request to stop kills everything. Then, or when a process fails while it is
ending, the exit code is 3. A process that had served and exits with code 0 was asked to, by hand: it is started again
at once, and that is no failure.

A running cluster is changed by one rollout at a time (deploy.rollout): processes that it ends have their own deadlines,
and those that it adds are optional: the first one of them that fails ends the rollout, not the cluster.
"""

import signal
from collections.abc import Iterable
from typing import assert_never

from deploy.absence import AbsenceWatch
from deploy.exit_causes import describe_exit, is_own_fault
from deploy.rollout import Add, CannotChange, Rollout, plan
from deploy.supervised_process import ALIVE, ProcessState, Role, SupervisedProcess
from deploy.supervisor_events import (
    AnnounceFailure,
    AnnounceHung,
    AnnounceOverdue,
    AnnounceReady,
    AnnounceRestart,
    Answer,
    AskForSnapshot,
    Command,
    Event,
    Exited,
    Finish,
    Hung,
    Kill,
    MachineRefused,
    Ready,
    Report,
    Requested,
    Snapshot,
    Start,
    StopRequested,
    TellCoordinator,
    Terminate,
    TimePassed,
)
from protocol.exit_codes import ExitCode

FAILURES_BEFORE_READY = 5
KILL_GRACE_S = 5.0
"""Beyond the drain timeout: a process has its own deadline and needs some time after it to close."""
_STAGES = (Role.API_SERVER, Role.ENGINE_CORE, Role.COORDINATOR)


class Supervisor:
    """Owner of the state of all processes of one machine."""

    def __init__(self, processes: Iterable[tuple[str, Role]], drain_timeout_s: float) -> None:
        self._processes = {name: SupervisedProcess(name, role) for name, role in processes}
        self._stage_timeout_s = drain_timeout_s + KILL_GRACE_S
        self._announced = False
        self._stage: int | None = None
        """Index in _STAGES while ending."""
        self._stage_deadline_s: float | None = None
        self._killing = False
        self._exit_code = 0
        self._finished = False
        self._rollout: Rollout | None = None
        self._absence = AbsenceWatch()

    def start(self, now_s: float) -> list[Command]:
        """The commands that start everything. Call once."""
        return self._start_due(now_s)

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Takes one event in; returns what to do, in order."""
        commands = self._handle(event, now_s)
        return commands + self._roll_on(now_s)

    def _handle(self, event: Event, now_s: float) -> list[Command]:
        match event:
            case Ready(name):
                process = self._processes.get(name)  # none when it has ended since
                return [] if process is None else self._on_ready(process, now_s)
            case Exited(name, code):
                return self._on_exit(self._processes[name], code, now_s)
            case Hung(name):
                return self._on_hung(self._processes.get(name))
            case Snapshot():
                return self._on_snapshot(event, now_s)
            case MachineRefused(reason):
                return self._on_refused(reason, now_s)
            case StopRequested():
                return self._kill_all() if self.is_ending else self._end(0, now_s)
            case Requested():
                return self._on_requested(event)
            case TimePassed():
                return self._on_time(now_s)
            case _:
                assert_never(event)

    @property
    def is_ending(self) -> bool:
        """No process is started any more."""
        return self._stage is not None

    def state(self, name: str) -> ProcessState | None:
        """The state of a process; None when there is none of this name."""
        process = self._processes.get(name)
        return None if process is None else process.state

    def role(self, name: str) -> Role:
        """The role of a process that is there."""
        return self._processes[name].role

    def count(self, role: Role) -> int:
        """Processes of a role, alive or to be started again."""
        return sum(process.role is role for process in self._processes.values())

    def next_deadline_s(self) -> float | None:
        """When to call `handle` with TimePassed if nothing happens before; None for never."""
        if self.is_ending:
            return None if self._finished or self._killing else self._stage_deadline_s
        waiting = [p.restart_at_s for p in self._processes.values() if p.state is ProcessState.BACKING_OFF]
        ending = [p.ending_deadline_s for p in self._processes.values() if p.state is ProcessState.ENDING]
        deadlines = (*waiting, *ending, self._absence.next_deadline_s())
        return min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)

    # --- running ----------------------------------------------------------------------------------------------

    def _start_due(self, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for process in self._processes.values():
            if process.state is ProcessState.BACKING_OFF and process.restart_at_s <= now_s:
                process.move(ProcessState.STARTING)
                commands.append(Start(process.name))
        return commands

    def _on_ready(self, process: SupervisedProcess, now_s: float) -> list[Command]:
        if process.state is not ProcessState.STARTING:
            return []  # it is being ended, or said so twice
        process.become_ready(now_s)
        if self._announced or any(p.state is not ProcessState.READY for p in self._processes.values()):
            return []
        self._announced = True
        return [AnnounceReady()]

    def _on_exit(self, process: SupervisedProcess, code: int, now_s: float) -> list[Command]:
        commands: list[Command] = []
        if process.role is not Role.COORDINATOR:
            commands.append(TellCoordinator(process.name, is_own_fault(code)))
        self._absence.forget(process.name)
        if self.is_ending:
            process.move(ProcessState.GONE)
            if code not in (0, -signal.SIGTERM):  # the latter: before it could serve at all
                self._exit_code = self._exit_code or ExitCode.FORCED
            return commands + self._enter_stage(now_s)
        if process.state in (ProcessState.ENDING, ProcessState.KILLED):
            return commands + self._on_asked_exit(process, now_s)
        if process.is_optional:
            del self._processes[process.name]
            return commands + self._fail_rollout(f"{process.name} ended {describe_exit(code)} before it was ready")
        if self._rollout is not None and self._rollout.waits_for(process.name) and code != 0:
            text = f"{process.name} ended {describe_exit(code)}; it is being started again, the rest was left alone"
            commands += self._fail_rollout(text)
        delay_s = process.end(code, now_s)
        if not process.was_ever_ready and (code == ExitCode.HOPELESS or process.failures >= FAILURES_BEFORE_READY):
            commands.append(AnnounceFailure(process.name, _hopeless(process, code)))
            return commands + self._end(1, now_s)
        commands.append(AnnounceRestart(process.name, code, delay_s, process.failures))
        return commands + self._start_due(now_s)

    def _on_asked_exit(self, process: SupervisedProcess, now_s: float) -> list[Command]:
        process.end_as_asked(now_s)
        if process.state is ProcessState.GONE:
            del self._processes[process.name]
        return self._start_due(now_s)

    def _on_hung(self, process: SupervisedProcess | None) -> list[Command]:
        if process is None or process.state is not ProcessState.READY or process.is_condemned:
            return []  # said again before its exit was seen; or it is being ended, which has a deadline of its own
        process.condemn()
        return [AnnounceHung(process.name), Kill(process.name)]

    def _on_snapshot(self, snapshot: Snapshot, now_s: float) -> list[Command]:
        running = [
            process.name
            for process in self._processes.values()
            if process.role is Role.ENGINE_CORE and process.state is ProcessState.READY
        ]
        absent = self._absence.told(snapshot.coordinator, snapshot.engine_cores, running, now_s)
        return [command for name in absent for command in self._on_hung(self._processes[name])]

    def _on_refused(self, reason: str, now_s: float) -> list[Command]:
        if self.is_ending:
            return []
        return [AnnounceFailure("", f"the coordinator refuses this machine: {reason}"), *self._end(1, now_s)]

    def _on_time(self, now_s: float) -> list[Command]:
        if not self.is_ending:
            asking: list[Command] = [AskForSnapshot()] if self._absence.has_to_ask(now_s) else []
            return self._start_due(now_s) + self._kill_overdue(now_s) + asking
        if self._stage_deadline_s is None or now_s < self._stage_deadline_s:
            return []
        self._stage_deadline_s = None
        overdue = [p for p in self._processes.values() if p.state is ProcessState.ENDING]
        return [c for p in overdue for c in (AnnounceOverdue(p.name), *self._kill(p))]

    def _kill_overdue(self, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for process in self._processes.values():
            deadline_s = process.ending_deadline_s
            if process.state is ProcessState.ENDING and deadline_s is not None and deadline_s <= now_s:
                commands += [AnnounceOverdue(process.name), *self._kill(process)]
        return commands

    # --- changing what runs -----------------------------------------------------------------------------------

    def _on_requested(self, requested: Requested) -> list[Command]:
        ticket = requested.ticket
        if self.is_ending or not self._announced:
            return [Answer(ticket, False, "the cluster is ending" if self.is_ending else "the cluster still starts")]
        if self._rollout is not None:
            return [Answer(ticket, False, "another change is under way")]
        try:
            phases = plan(requested.request, {name: process.role for name, process in self._processes.items()})
        except CannotChange as error:
            return [Answer(ticket, False, str(error))]
        self._rollout = Rollout(phases, ticket)
        return []

    def _roll_on(self, now_s: float) -> list[Command]:
        commands: list[Command] = []
        while self._rollout is not None and (actions := self._rollout.advance(self.state)):
            for action in actions:
                if isinstance(action, Add):
                    self._processes[action.name] = SupervisedProcess(action.name, action.role, is_optional=True)
                    commands.append(Report(self._rollout.ticket, f"starting {action.name}"))
                else:
                    process = self._processes[action.name]
                    commands.append(Report(self._rollout.ticket, f"draining {action.name}"))
                    commands += self._ask_to_end(process, now_s, action.returns)
            commands += self._start_due(now_s)
        if self._rollout is not None and self._rollout.is_done:
            commands.append(Answer(self._rollout.ticket, True, "done"))
            self._rollout = None
        return commands

    def _ask_to_end(self, process: SupervisedProcess, now_s: float, returns: bool) -> list[Command]:
        if process.state is ProcessState.BACKING_OFF:  # it is dead already
            if not returns:
                del self._processes[process.name]
            return []
        process.ask_to_end(now_s + self._stage_timeout_s, returns)
        return [Terminate(process.name)]

    def _fail_rollout(self, reason: str) -> list[Command]:
        rollout, self._rollout = self._rollout, None
        return [] if rollout is None else [Answer(rollout.ticket, False, reason)]

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, exit_code: int, now_s: float) -> list[Command]:
        self._exit_code = exit_code
        self._stage = -1
        commands = self._fail_rollout("the cluster is ending")
        for process in self._processes.values():
            if process.state is ProcessState.BACKING_OFF:
                process.move(ProcessState.GONE)
        return commands + self._enter_stage(now_s)

    def _enter_stage(self, now_s: float) -> list[Command]:
        """Goes on to the next stage with living processes, unless the current one still has some."""
        assert self._stage is not None
        commands: list[Command] = []
        while not self._killing and self._stage < len(_STAGES) and not self._living(self._stage):
            self._stage += 1
            self._stage_deadline_s = now_s + self._stage_timeout_s
            for process in self._living(self._stage):
                if process.state not in (ProcessState.ENDING, ProcessState.KILLED):  # a rollout has asked it before
                    process.move(ProcessState.ENDING)
                    commands.append(Terminate(process.name))
        if not self._finished and all(p.state is ProcessState.GONE for p in self._processes.values()):
            self._finished = True
            commands.append(Finish(self._exit_code))
        return commands

    def _living(self, stage: int) -> list[SupervisedProcess]:
        if not 0 <= stage < len(_STAGES):
            return []
        return [p for p in self._processes.values() if p.role is _STAGES[stage] and p.state in ALIVE]

    def _kill_all(self) -> list[Command]:
        self._killing = True
        return [command for process in self._processes.values() for command in self._kill(process)]

    def _kill(self, process: SupervisedProcess) -> list[Command]:
        if process.state not in ALIVE or process.state is ProcessState.KILLED:
            return []
        if process.state is not ProcessState.ENDING:
            process.move(ProcessState.ENDING)
        process.move(ProcessState.KILLED)
        return [Kill(process.name)]

    def check_invariants(self) -> None:
        """Asserts what must hold between two events."""
        states = [p.state for p in self._processes.values()]
        ending_states = {ProcessState.ENDING, ProcessState.KILLED, ProcessState.GONE}
        if not self.is_ending:
            assert ProcessState.GONE not in states, states
            for p in self._processes.values():
                assert p.state not in ending_states or p.ending_deadline_s is not None, p.name
        else:
            assert ProcessState.BACKING_OFF not in states, states
            for stage in range(self._stage or 0):
                assert self._killing or not self._living(stage), "a stage began before the one before it was over"
        assert self._finished == (self.is_ending and set(states) <= {ProcessState.GONE})


def _hopeless(process: SupervisedProcess, code: int) -> str:
    if code == ExitCode.HOPELESS:
        return f"{process.name} cannot start"
    return f"{process.name} died {process.failures} times before it was ready, the last time {describe_exit(code)}"
