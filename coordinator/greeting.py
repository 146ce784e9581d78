"""What a Hello must be like to be accepted."""

from collections.abc import Iterable

from coordinator.events import Identity
from protocol.identifiers import member_identity
from protocol.messages import PROTOCOL_VERSION, ClientHello, EngineHello

Hello = ClientHello | EngineHello

MAX_NAME_LENGTH = 64
MAX_MODEL_NAME_LENGTH = 512


def is_genuine(identity: Identity, hello: Hello) -> bool:
    """Whether the Hello comes from the process that it names."""
    return identity == member_identity(hello.name, hello.incarnation)


def is_late(hello: Hello, known: Hello | None) -> bool:
    """Whether the process has said `known` after this, by a newer connection."""
    return known is not None and hello.greeting < known.greeting


def reason_to_refuse(hello: Hello, members: int, max_members: int, known: Iterable[Hello]) -> str | None:
    """Why this Hello is not accepted, in words for the operator; None when it is. `members`: others there are; `known`:
    what those who are there, or may come back, have said.

    Names go into logs and metrics: past here they are printable and not long.
    """
    if not _is_fit_to_print(hello.name, MAX_NAME_LENGTH):
        return f"a name is 1 to {MAX_NAME_LENGTH} printable characters, not {hello.name[:MAX_NAME_LENGTH]!a}"
    if isinstance(hello, EngineHello) and not _is_fit_to_print(hello.model.name, MAX_MODEL_NAME_LENGTH):
        return f"a model's name is 1 to {MAX_MODEL_NAME_LENGTH} printable characters (of {hello.name})"
    if hello.version != PROTOCOL_VERSION:
        return (
            f"{hello.name} speaks version {hello.version} of the protocol, this coordinator version "
            f"{PROTOCOL_VERSION}: run the same release of Shoal everywhere"
        )
    if any(_is_successor(each, hello) for each in known):
        return f"a newer process has taken the name {hello.name}"
    if members >= max_members:
        return f"there are {members} processes of this kind already, no more than {max_members} are served"
    return None


def _is_successor(other: Hello, hello: Hello) -> bool:
    return other.name == hello.name and other.incarnation != hello.incarnation and other.started_s > hello.started_s


def _is_fit_to_print(name: str, max_length: int) -> bool:
    return 0 < len(name) <= max_length and name.isprintable()
