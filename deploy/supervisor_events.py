"""What the supervisor's core is told (events), and what it wants done (commands)."""

import msgspec

from deploy.control_messages import ControlRequest
from protocol.identifiers import Incarnation

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


class Snapshot(msgspec.Struct, frozen=True):
    """The coordinator says which engine cores it knows."""

    coordinator: Incarnation
    engine_cores: frozenset[str]
    """Names."""


class MachineRefused(msgspec.Struct, frozen=True):
    """The coordinator, on another machine, will have none of the processes of this one."""

    reason: str


class StopRequested(msgspec.Struct, frozen=True):
    """SIGTERM or SIGINT came."""


class Requested(msgspec.Struct, frozen=True):
    """An operator wants the running cluster changed."""

    request: ControlRequest
    ticket: int
    """Whom the answers go to."""


class TimePassed(msgspec.Struct, frozen=True):
    """`next_deadline_s` is reached (or not: nothing happens then)."""


Event = Ready | Exited | Hung | Snapshot | MachineRefused | StopRequested | Requested | TimePassed


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
    by_fault: bool = False
    """Whether it ended by itself, and not in order."""


class AskForSnapshot(msgspec.Struct, frozen=True):
    """Have the coordinator say once more whom it knows."""


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


class Report(msgspec.Struct, frozen=True):
    """Tell the operator who asked how far it is."""

    ticket: int
    text: str


class Answer(msgspec.Struct, frozen=True):
    """Tell the operator who asked how it ended. The last for this ticket."""

    ticket: int
    ok: bool
    text: str


Command = (
    Start
    | Terminate
    | Kill
    | TellCoordinator
    | AskForSnapshot
    | AnnounceReady
    | AnnounceRestart
    | AnnounceFailure
    | AnnounceOverdue
    | AnnounceHung
    | Finish
    | Report
    | Answer
)
