"""Which deaths a process may have brought upon itself."""

import signal

import pytest

from deploy.exit_causes import describe_exit, is_own_fault
from protocol.exit_codes import ExitCode


@pytest.mark.parametrize("code", [ExitCode.FAULT, 137, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS])
def test_what_raised_or_crashed_did_so_by_itself(code: int) -> None:
    assert is_own_fault(code)


@pytest.mark.parametrize(
    "code", [ExitCode.DRAINED, ExitCode.HOPELESS, ExitCode.FORCED, ExitCode.ORPHANED, -signal.SIGKILL, -signal.SIGTERM]
)
def test_what_was_ended_from_outside_or_in_order_did_not(code: int) -> None:
    assert not is_own_fault(code)


def test_exits_are_described() -> None:
    assert (describe_exit(1), describe_exit(-9)) == ("with exit code 1", "by signal 9")
