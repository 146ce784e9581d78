"""A child process and the supervisor's end of its lifeline."""

import asyncio
import os
import sys

import pytest

from deploy.child import start_child
from deploy.launch import ProcessSpec
from protocol.lifeline import Notice

LIMIT_S = 20.0
OPEN_LIFELINE = "import os, socket; line = socket.socket(fileno=int(os.environ['SHOAL_LIFELINE_FD'])); "


async def outcome(program: str) -> tuple[int, list[Notice]]:
    """Exit code and notices of a process that runs this Python program."""
    notices: list[Notice] = []
    spec = ProcessSpec("child", (sys.executable, "-c", OPEN_LIFELINE + program), dict(os.environ))
    child = await start_child(spec)
    return await asyncio.wait_for(child.wait(notices.append), LIMIT_S), notices


async def test_what_a_process_says_just_before_its_end_arrives() -> None:
    say_much = 'line.sendall(b\'{"state":"loading"}\\n\' * 2000 + b\'{"state":"ready"}\\n\'); os._exit(3)'
    code, notices = await outcome(say_much)
    assert (code, len(notices), notices[-1]) == (3, 2001, Notice("ready"))


@pytest.mark.parametrize("garbage", ["b'{}\\n'", "b'\\xff\\n'", "b'no object\\n'"])
async def test_a_notice_that_cannot_be_read_is_passed_over(garbage: str, caplog: pytest.LogCaptureFixture) -> None:
    code, notices = await outcome(f'line.sendall({garbage} + b\'{{"state":"ready"}}\\n\')')
    assert (code, notices) == (0, [Notice("ready")])
    assert "cannot be read" in caplog.text


async def test_a_line_without_end_does_not_hide_the_end_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    code, notices = await outcome("line.sendall(b'x' * 200_000); line.recv(1)")
    assert (code, notices) == (0, [])
    assert "can be read any more" in caplog.text


async def test_a_process_that_is_killed_has_ended() -> None:
    code, notices = await outcome("os.kill(os.getpid(), 9)")
    assert (code, notices) == (-9, [])
