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
"""

import signal
from collections.abc import Iterable

import msgspec

from deploy.supervised_process import ALIVE, ProcessState, Role, SupervisedProcess
from protocol.exit_codes import ExitCode

FAILURES_BEFORE_READY = 5
KILL_GRACE_S = 5.0
"""Beyond the drain timeout: a process has its own deadline and needs some time after it to close."""
_STAGES = (Role.API_SERVER, Role.ENGINE_CORE, Role.COORDINATOR)


# --- events ---------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True):
    """The process can do its work."""

    name: str


class Exited(msgspec.Struct, frozen=True):
    """The process is dead."""

    name: str
    code: int
    """Exit code; minus the signal's number when a signal ended it."""


class Hung(msgspec.Struct, frozen=True):
    """The coordinator has not heard of the process for too long, and has given it up."""

    name: str


class MachineRefused(msgspec.Struct, frozen=True):
    """The coordinator, on another machine, will have none of the processes of this one."""

    reason: str


class StopRequested(msgspec.Struct, frozen=True):
    """SIGTERM or SIGINT came."""


class TimePassed(msgspec.Struct, frozen=True):
    """`next_deadline_s` is reached (or not: nothing happens then)."""


Event = Ready | Exited | Hung | MachineRefused | StopRequested | TimePassed


# --- commands -------------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Start the process."""

    name: str


class Terminate(msgspec.Struct, frozen=True):
    """Send SIGTERM: drain and exit."""

    name: str


class Kill(msgspec.Struct, frozen=True):
    """Send SIGKILL to the process and all that it started."""

    name: str


class TellCoordinator(msgspec.Struct, frozen=True):
    """Tell the coordinator that this member's process is gone for certain."""

    name: str


class AnnounceReady(msgspec.Struct, frozen=True):
    """All processes are ready for the first time."""


class AnnounceRestart(msgspec.Struct, frozen=True):
    """A process died and will be started again."""

    name: str
    code: int
    delay_s: float
    failures: int
    """How often it died since it was last healthy."""


class AnnounceFailure(msgspec.Struct, frozen=True):
    """The cluster cannot run; everything is being ended."""

    name: str
    """The process because of which; empty for none."""
    message: str


class AnnounceOverdue(msgspec.Struct, frozen=True):
    """A process was not gone by its deadline and is being killed."""

    name: str


class AnnounceHung(msgspec.Struct, frozen=True):
    """A process does nothing any more and is being killed, to be started again."""

    name: str


class Finish(msgspec.Struct, frozen=True):
    """All processes are gone."""

    exit_code: int


Command = (
    Start
    | Terminate
    | Kill
    | TellCoordinator
    | AnnounceReady
    | AnnounceRestart
    | AnnounceFailure
    | AnnounceOverdue
    | AnnounceHung
    | Finish
)


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

    def start(self, now_s: float) -> list[Command]:
        """The commands that start everything. Call once."""
        return self._start_due(now_s)

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Takes one event in; returns what to do, in order."""
        match event:
            case Ready(name):
                return self._on_ready(self._processes[name], now_s)
            case Exited(name, code):
                return self._on_exit(self._processes[name], code, now_s)
            case Hung(name):
                return self._on_hung(self._processes[name])
            case MachineRefused(reason):
                return self._on_refused(reason, now_s)
            case StopRequested():
                return self._kill_all() if self.is_ending else self._end(0, now_s)
            case TimePassed():
                return self._on_time(now_s)

    @property
    def is_ending(self) -> bool:
        """No process is started any more."""
        return self._stage is not None

    def state(self, name: str) -> ProcessState:
        """The state of a process."""
        return self._processes[name].state

    def next_deadline_s(self) -> float | None:
        """When to call `handle` with TimePassed if nothing happens before; None for never."""
        if self.is_ending:
            return None if self._finished or self._killing else self._stage_deadline_s
        waiting = [p.restart_at_s for p in self._processes.values() if p.state is ProcessState.BACKING_OFF]
        return min(waiting, default=None)

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
            commands.append(TellCoordinator(process.name))
        if self.is_ending:
            process.move(ProcessState.GONE)
            if code not in (0, -signal.SIGTERM):  # the latter: before it could serve at all
                self._exit_code = self._exit_code or ExitCode.FORCED
            return commands + self._enter_stage(now_s)
        delay_s = process.end(code, now_s)
        if not process.was_ever_ready and (code == ExitCode.HOPELESS or process.failures >= FAILURES_BEFORE_READY):
            commands.append(AnnounceFailure(process.name, _hopeless(process, code)))
            return commands + self._end(1, now_s)
        commands.append(AnnounceRestart(process.name, code, delay_s, process.failures))
        return commands + self._start_due(now_s)

    def _on_hung(self, process: SupervisedProcess) -> list[Command]:
        if process.state is not ProcessState.READY or process.is_condemned:
            return []  # said again before its exit was seen; or it is being ended, which has a deadline of its own
        process.condemn()
        return [AnnounceHung(process.name), Kill(process.name)]

    def _on_refused(self, reason: str, now_s: float) -> list[Command]:
        if self.is_ending:
            return []
        return [AnnounceFailure("", f"the coordinator refuses this machine: {reason}"), *self._end(1, now_s)]

    def _on_time(self, now_s: float) -> list[Command]:
        if not self.is_ending:
            return self._start_due(now_s)
        if self._stage_deadline_s is None or now_s < self._stage_deadline_s:
            return []
        self._stage_deadline_s = None
        overdue = [p for p in self._processes.values() if p.state is ProcessState.ENDING]
        return [c for p in overdue for c in (AnnounceOverdue(p.name), *self._kill(p))]

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, exit_code: int, now_s: float) -> list[Command]:
        self._exit_code = exit_code
        self._stage = -1
        for process in self._processes.values():
            if process.state is ProcessState.BACKING_OFF:
                process.move(ProcessState.GONE)
        return self._enter_stage(now_s)

    def _enter_stage(self, now_s: float) -> list[Command]:
        """Goes on to the next stage with living processes, unless the current one still has some."""
        assert self._stage is not None
        commands: list[Command] = []
        while not self._killing and self._stage < len(_STAGES) and not self._living(self._stage):
            self._stage += 1
            self._stage_deadline_s = now_s + self._stage_timeout_s
            for process in self._living(self._stage):
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
            assert not ending_states & set(states), states
        else:
            assert ProcessState.BACKING_OFF not in states, states
            for stage in range(self._stage or 0):
                assert self._killing or not self._living(stage), "a stage began before the one before it was over"
        assert self._finished == (self.is_ending and set(states) <= {ProcessState.GONE})


def _hopeless(process: SupervisedProcess, code: int) -> str:
    if code == ExitCode.HOPELESS:
        return f"{process.name} cannot start"
    return f"{process.name} died {process.failures} times before it was ready, the last time {describe_exit(code)}"


def describe_exit(code: int) -> str:
    """`with exit code 1` or `by signal 9`."""
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
