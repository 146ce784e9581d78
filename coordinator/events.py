"""What the coordinator's core is told (events), and what it wants done (commands)."""

import enum
from collections.abc import Sequence
from typing import NewType

import msgspec

from protocol.codec import Frame, Received
from protocol.messages import (
    ClientToCoordinator,
    CoordinatorToAll,
    CoordinatorToClient,
    CoordinatorToEngine,
    EngineToCoordinator,
)

Identity = NewType("Identity", bytes)
"""A member's ZeroMQ routing id: see protocol.identifiers.member_identity."""


class Link(enum.Enum):
    """Which of the coordinator's sockets something came by or goes by."""

    CLIENTS = "clients"
    ENGINES = "engines"
    CLUSTER = "cluster"


class FromClient(msgspec.Struct, frozen=True, gc=False):
    """A well-formed message on the clients link."""

    identity: Identity
    received: Received[ClientToCoordinator]


class FromEngine(msgspec.Struct, frozen=True, gc=False):
    """A well-formed message on the engines link."""

    identity: Identity
    received: Received[EngineToCoordinator]


class Garbage(msgspec.Struct, frozen=True, gc=False):
    """Frames that are no message of this link."""

    link: Link
    identity: Identity
    reason: str


class Unreachable(msgspec.Struct, frozen=True, gc=False):
    """A send failed: the peer has no connection, or has stopped reading."""

    link: Link
    identity: Identity
    reason: str


class Subscribed(msgspec.Struct, frozen=True, gc=False):
    """Somebody new listens to the cluster state."""


class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """All that was taken from the sockets in this turn has been handled."""

    drained: bool
    """Nothing was left behind, so that a member not heard from has in fact sent nothing."""


Event = FromClient | FromEngine | Garbage | Unreachable | Subscribed | TurnEnded


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a message to a member."""

    link: Link
    identity: Identity
    message: CoordinatorToClient | CoordinatorToEngine
    buffers: Sequence[Frame] = ()


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Send frames to a member as they came."""

    link: Link
    identity: Identity
    frames: Sequence[Frame]


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publish on the cluster link."""

    message: CoordinatorToAll


class Drop(msgspec.Struct, frozen=True, gc=False):
    """A message was dropped because its sender broke the protocol: say so in the log."""

    identity: Identity
    reason: str


class Note(msgspec.Struct, frozen=True, gc=False):
    """A line for the log: something in the life of the cluster."""

    text: str


Command = Send | Forward | Publish | Drop | Note


class Outbox:
    """Owner of the commands that one event leads to, in order."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def to_client(self, identity: Identity, message: CoordinatorToClient, *buffers: Frame) -> None:
        """Adds a Send on the clients link."""
        self._commands.append(Send(Link.CLIENTS, identity, message, buffers))

    def to_engine(self, identity: Identity, message: CoordinatorToEngine) -> None:
        """Adds a Send on the engines link."""
        self._commands.append(Send(Link.ENGINES, identity, message))

    def forward_to_engine(self, identity: Identity, frames: Sequence[Frame]) -> None:
        """Adds a Forward on the engines link."""
        self._commands.append(Forward(Link.ENGINES, identity, frames))

    def add(self, command: Command) -> None:
        """Adds any other command."""
        self._commands.append(command)

    def take(self) -> list[Command]:
        """The commands since the last call."""
        commands, self._commands = self._commands, []
        return commands
