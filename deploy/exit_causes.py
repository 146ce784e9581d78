"""What an exit code says of how a process ended."""

import signal

from protocol.exit_codes import ExitCode

_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_AS_MEANT = {ExitCode.DRAINED, ExitCode.HOPELESS, ExitCode.FORCED, ExitCode.ORPHANED}


def is_own_fault(code: int) -> bool:
    """Whether the process raised, crashed or hung, so that what it was computing may be the reason.

    SIGKILL counts as from outside: an operator, this supervisor (which kills who is silent), or the kernel when memory
    is short, which no exit code tells apart.
    """
    return -code not in _FROM_OUTSIDE if code < 0 else code not in _AS_MEANT


def describe_exit(code: int) -> str:
    """`with exit code 1` or `by signal 9`."""
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
