"""How a running cluster is changed: which processes come and go, in which order. No clock, no process, no I/O.

A change is a list of phases, done one after the other. A phase first starts what is new and waits until it is ready,
then ends what is to go and waits until it has drained. So API servers are never fewer than before: a successor
accepts from the shared listening socket before its predecessor stops, and takes another name, as two of one name
cannot be members of the cluster at once. An engine core holds a device's memory, which may not have room for two: it
is ended first, and comes back under its own name, while the others serve.
"""

from collections.abc import Callable, Mapping

import msgspec

from deploy.control_messages import ControlRequest, Drain, RestartRolling, Scale
from deploy.supervised_process import ProcessState, Role


class Phase(msgspec.Struct, frozen=True):
    """One step of a change."""

    start: tuple[tuple[str, Role], ...] = ()
    end: tuple[str, ...] = ()
    returns: bool = False
    """Those that end are started again."""


class Add(msgspec.Struct, frozen=True):
    """A new process is wanted."""

    name: str
    role: Role


class End(msgspec.Struct, frozen=True):
    """A process shall drain and exit; and come back, if it `returns`."""

    name: str
    returns: bool


class CannotChange(Exception):
    """The cluster cannot be changed so; the message says why."""


_NAMES = {Role.ENGINE_CORE: "engine-", Role.API_SERVER: "api-"}
StateOf = Callable[[str], ProcessState | None]
"""The state of a process, None when there is none of this name."""


def plan(request: ControlRequest, processes: Mapping[str, Role]) -> list[Phase]:
    """The phases of a change of these processes. Raises CannotChange."""
    match request:
        case Drain(name):
            return _drain(name, processes)
        case RestartRolling():
            return _restart(processes)
        case Scale(engines, api_servers):
            ups, downs = Phase(), Phase()
            for role, wanted in ((Role.ENGINE_CORE, engines), (Role.API_SERVER, api_servers)):
                have = _of_role(processes, role)
                fresh = new_names(processes, role, max(0, (wanted or 0) - len(have)))
                extra = have[wanted:] if wanted is not None else []
                ups = Phase((*ups.start, *((name, role) for name in fresh)))
                downs = Phase(end=(*downs.end, *extra))
            return [phase for phase in (ups, downs) if phase != Phase()]


def _drain(name: str, processes: Mapping[str, Role]) -> list[Phase]:
    role = processes.get(name)
    if role is None:
        known = ", ".join(sorted(processes))
        raise CannotChange(f"there is no process {name!r}; there are {known}")
    if role is Role.COORDINATOR:
        raise CannotChange("the coordinator cannot be drained: it has no successor that would take over")
    if role is Role.API_SERVER and len(_of_role(processes, role)) == 1:
        raise CannotChange(f"{name} is the only API server: nobody would answer")
    return [Phase(end=(name,))]


def _restart(processes: Mapping[str, Role]) -> list[Phase]:
    phases = [Phase(end=(name,), returns=True) for name in _of_role(processes, Role.ENGINE_CORE)]
    names = dict(processes)
    for old in _of_role(processes, Role.API_SERVER):
        (new,) = new_names(names, Role.API_SERVER, 1)
        phases.append(Phase(((new, Role.API_SERVER),), (old,)))
        names[new] = names.pop(old)
    coordinators = tuple(_of_role(processes, Role.COORDINATOR))
    return [*phases, Phase(end=coordinators, returns=True)]


def new_names(processes: Mapping[str, Role], role: Role, count: int) -> list[str]:
    """The lowest free names of a role."""
    numbers = range(len(processes) + count)
    free = [name for name in (f"{_NAMES[role]}{number}" for number in numbers) if name not in processes]
    return free[:count]


def _of_role(processes: Mapping[str, Role], role: Role) -> list[str]:
    """Oldest number first."""
    return sorted((name for name, each in processes.items() if each is role), key=lambda name: (len(name), name))


class Rollout:
    """Owner of how far a change is."""

    def __init__(self, phases: list[Phase], ticket: int) -> None:
        self.ticket = ticket
        """Of whoever asked for it."""
        self._phases = phases
        self._index = 0
        self._has_started = False
        self._has_ended = False

    @property
    def is_done(self) -> bool:
        """Whether no phase is left."""
        return self._index == len(self._phases)

    def advance(self, state_of: StateOf) -> list[Add | End]:
        """What is to be done now. To be called until it returns nothing, and after each event."""
        if self.is_done:
            return []
        phase = self._phases[self._index]
        if not self._has_started:
            self._has_started = True
            if phase.start:
                return [Add(name, role) for name, role in phase.start]
        if not self._has_ended and all(state_of(name) is ProcessState.READY for name, _ in phase.start):
            self._has_ended = True
            if phase.end:
                return [End(name, phase.returns) for name in phase.end if state_of(name) is not None]
        if self._has_ended and all(state_of(name) is self._wanted(phase) for name in phase.end):
            self._index += 1
            self._has_started = self._has_ended = False
            return self.advance(state_of)
        return []

    def waits_for(self, name: str) -> bool:
        """Whether this process is part of the present phase, and not as one that is there to stay."""
        if self.is_done:
            return False
        phase = self._phases[self._index]
        return name in phase.end or name in {new for new, _ in phase.start}

    @staticmethod
    def _wanted(phase: Phase) -> ProcessState | None:
        return ProcessState.READY if phase.returns else None
