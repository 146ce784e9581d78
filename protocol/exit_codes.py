"""What a role's exit code tells whoever started it: whether a new process may do better."""

import enum


class ExitCode(enum.IntEnum):
    """Of a coordinator, an engine core, an API server or a supervisor."""

    DRAINED = 0
    """Ended as it was asked to."""
    FAULT = 1
    """Something failed; a new process may do better."""
    HOPELESS = 2
    """Wrong configuration, refused by the coordinator, or a model that cannot be loaded: a new process would end the
    same way. Also what a command line that cannot be parsed ends with."""
    FORCED = 3
    """Ended by force: on a second signal, or when it (or a process of a supervisor) had not ended long after the
    drain's deadline. Streams may have been cut. (Those that the deadline itself ends are told, and that is DRAINED.)"""
    ORPHANED = 70
    """Its supervisor is gone."""
