"""Faults of the other side of a socket."""


class ProtocolError(Exception):
    """A peer sent what the protocol does not allow: the frames are dropped and counted, the process goes on."""


class VersionMismatch(ProtocolError):
    """A peer speaks another version of the protocol."""


class AddressError(ValueError):
    """An address that Shoal refuses to bind or connect; the message says why and what to use instead."""
