"""Identifiers that cross process borders."""

import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
"""Names one generation (one choice of one HTTP request) in the whole cluster; unique by construction."""

EngineIndex = NewType("EngineIndex", int)
"""Small number of an engine core, given by the coordinator; an engine core restarted under the same name keeps it."""

ClientIndex = NewType("ClientIndex", int)
"""Number of an API server, given by the coordinator; says where an engine core pushes a request's outputs."""

Incarnation = NewType("Incarnation", str)
"""Names one run of one process: a restarted process has another."""


def new_incarnation() -> Incarnation:
    """A fresh random incarnation (16 hexadecimal digits)."""
    return Incarnation(secrets.token_hex(8))


def member_identity(name: str, incarnation: Incarnation) -> bytes:
    """The ZeroMQ routing id of a member of the cluster, `<name>/<incarnation>`: it names one run of one process."""
    return f"{name}/{incarnation}".encode()


def new_request_id(prefix: str) -> RequestId:
    """A fresh random request id `prefix-<24 hexadecimal digits>`; never taken from what a client sent."""
    return RequestId(f"{prefix}-{secrets.token_hex(12)}")
