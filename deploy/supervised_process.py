"""One supervised process: its role, its states with their legal moves, and its back-off after failures."""

import enum

HEALTHY_AFTER_S = 60.0
CLEAN_AFTER_S = 1.0
"""Who served for so long and exits with code 0 was asked to (SIGTERM by hand): no failure. Sooner, it might spin."""
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


class Role(enum.Enum):
    """What a process is; the value is its command."""

    COORDINATOR = "coordinator"
    ENGINE_CORE = "engine-core"
    API_SERVER = "api-server"


class ProcessState(enum.Enum):
    """Where a process is in its life."""

    STARTING = enum.auto()
    READY = enum.auto()
    BACKING_OFF = enum.auto()
    """Dead, to be started again."""
    ENDING = enum.auto()
    """Asked to drain and exit."""
    KILLED = enum.auto()
    """Sent SIGKILL; its exit has not been seen yet."""
    GONE = enum.auto()
    """Dead, not to be started again."""


_LEGAL = {
    ProcessState.STARTING: {ProcessState.READY, ProcessState.BACKING_OFF, ProcessState.ENDING, ProcessState.GONE},
    ProcessState.READY: {ProcessState.BACKING_OFF, ProcessState.ENDING, ProcessState.GONE},
    ProcessState.BACKING_OFF: {ProcessState.STARTING, ProcessState.GONE},
    ProcessState.ENDING: {ProcessState.KILLED, ProcessState.GONE, ProcessState.BACKING_OFF},
    ProcessState.KILLED: {ProcessState.GONE, ProcessState.BACKING_OFF},
    ProcessState.GONE: set[ProcessState](),
}
ALIVE = {ProcessState.STARTING, ProcessState.READY, ProcessState.ENDING, ProcessState.KILLED}
_HISTORY = 8


class IllegalMove(Exception):
    """A process state changed in a way that it must not; the message has its history."""


class SupervisedProcess:
    """Owner of one process's state."""

    def __init__(self, name: str, role: Role, is_optional: bool = False) -> None:
        """One that `is_optional` was added to a running cluster, which can do without it if it cannot start."""
        self.name = name
        self.is_optional = is_optional
        self.role = role
        self.state = ProcessState.BACKING_OFF
        self.restart_at_s = 0.0
        self.ready_since_s: float | None = None
        self.was_ever_ready = False
        self.failures = 0
        self.is_condemned = False
        """Hung, and sent SIGKILL; its exit has not been seen yet."""
        self.returns = False
        """While ending: whether it is started again."""
        self.ending_deadline_s: float | None = None
        """While ending by itself, not with the whole cluster: when it is killed."""
        self._history = [self.state]

    def move(self, state: ProcessState) -> None:
        """Changes the state. Raises IllegalMove, with the recent history."""
        if state not in _LEGAL[self.state]:
            trail = " > ".join(past.name for past in self._history[-_HISTORY:])
            raise IllegalMove(f"{self.name}: {trail} > {state.name}")
        self.state = state
        self._history = [*self._history[-_HISTORY:], state]

    def become_ready(self, now_s: float) -> None:
        """It can do its work; from now on it is like those that were there from the start."""
        self.move(ProcessState.READY)
        self.ready_since_s = now_s
        self.was_ever_ready = True
        self.is_optional = False

    def ask_to_end(self, deadline_s: float, returns: bool) -> None:
        """It shall drain and exit by this time; and be started again, if it `returns`."""
        self.move(ProcessState.ENDING)
        self.ending_deadline_s = deadline_s
        self.returns = returns

    def end_as_asked(self, now_s: float) -> None:
        """It has exited. No failure, however it did."""
        self.ending_deadline_s = None
        self.is_condemned = False
        self.ready_since_s = None
        self.restart_at_s = now_s
        self.move(ProcessState.BACKING_OFF if self.returns else ProcessState.GONE)

    def condemn(self) -> None:
        """It does nothing any more and is sent SIGKILL."""
        self.is_condemned = True

    def end(self, code: int, now_s: float) -> float:
        """Takes its exit code, counts a failure if it is one, schedules the restart; returns the delay in seconds."""
        ready_for_s = 0.0 if self.ready_since_s is None else now_s - self.ready_since_s
        if ready_for_s >= HEALTHY_AFTER_S:
            self.failures = 0
        self.ready_since_s = None
        delay_s = 0.0
        if code != 0 or ready_for_s < CLEAN_AFTER_S:
            self.failures += 1
            if self.failures > 1:
                delay_s = min(FIRST_DELAY_S * 2 ** (self.failures - 2), LONGEST_DELAY_S)
        self.is_condemned = False
        self.move(ProcessState.BACKING_OFF)
        self.restart_at_s = now_s + delay_s
        return delay_s
