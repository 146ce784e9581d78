"""Faults of the other side of a socket."""


class ProtocolError(Exception):
    """A peer sent what the protocol does not allow: the frames are dropped and counted, the process goes on."""


class AddressError(ValueError):
    """An address that Shoal refuses to use, or that cannot be bound or connected; the message names it and says why."""


class BadKey(ValueError):
    """A CURVE key, or a file with one, that cannot be used; the message says which and why, never the key."""
