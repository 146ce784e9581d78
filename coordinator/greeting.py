"""What a Hello must be like to be accepted."""

from coordinator.events import Identity
from protocol.identifiers import member_identity
from protocol.messages import PROTOCOL_VERSION, ClientHello, EngineHello

Hello = ClientHello | EngineHello


def is_genuine(identity: Identity, hello: Hello) -> bool:
    """Whether the Hello comes from the process that it names."""
    return identity == member_identity(hello.name, hello.incarnation)


def reason_to_refuse(hello: Hello, members: int, max_members: int) -> str | None:
    """Why this Hello is not accepted, in words for the operator; None when it is. `members`: others there are."""
    if hello.version != PROTOCOL_VERSION:
        return (
            f"{hello.name} speaks version {hello.version} of the protocol, this coordinator version "
            f"{PROTOCOL_VERSION}: run the same release of Shoal everywhere"
        )
    if members >= max_members:
        return f"there are {members} processes of this kind already, no more than {max_members} are served"
    return None
