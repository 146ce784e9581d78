"""The supervisor's control socket: requests, answers, and what is none of the two."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from deploy import control_server
from deploy.control_commands import run
from deploy.control_messages import ControlRequest, Done, Drain, Progress, Scale
from deploy.control_server import ControlServer


class Supervisor:
    """Keeps what was asked, and answers when a test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: asyncio.Queue[tuple[ControlRequest, int]] = asyncio.Queue()
        self.server = ControlServer(lambda request, ticket: self.asked.put_nowait((request, ticket)))


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    made = Supervisor(tmp_path)
    await made.server.start(tmp_path / "control")
    yield made
    made.server.close()


async def say(supervisor: Supervisor, line: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(supervisor.directory / "control")
    writer.write(line)
    return reader, writer


async def test_a_request_is_answered_step_by_step_on_its_own_connection(supervisor: Supervisor) -> None:
    first, first_writer = await say(supervisor, b'{"type":"drain","name":"engine-0"}\n')
    second, second_writer = await say(supervisor, b'{"type":"scale","engines":3}\n')
    asked = dict([await supervisor.asked.get(), await supervisor.asked.get()])
    assert set(asked) == {Drain("engine-0"), Scale(engines=3)}
    supervisor.server.answer(asked[Drain("engine-0")], Progress("draining"))
    supervisor.server.answer(asked[Scale(engines=3)], Done(False, "no"))
    supervisor.server.answer(asked[Drain("engine-0")], Done(True, "done"))
    assert await first.read() == b'{"type":"progress","text":"draining"}\n{"type":"done","ok":true,"text":"done"}\n'
    assert await second.read() == b'{"type":"done","ok":false,"text":"no"}\n'
    for writer in (first_writer, second_writer):
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"\xff\x00\n",
        b'{"type":"drain"}\n',
        b'{"type":"drain","name":"x","force":true}\n',
        b'{"type":"scale","engines":0}\n',
        b'{"type":"kill","name":"x"}\n',
        b"x" * 100_000,
    ],
)
async def test_what_is_no_request_is_said_to_be_none(supervisor: Supervisor, line: bytes) -> None:
    reader, writer = await say(supervisor, line)
    answer = msgspec.json.decode(await asyncio.wait_for(reader.readline(), 5), type=Done)
    assert not answer.ok and "not a request" in answer.text
    assert supervisor.asked.empty()
    writer.close()


async def test_a_connection_that_says_nothing_ends(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "REQUEST_TIMEOUT_S", 0.05)
    reader, writer = await say(supervisor, b'{"type":')
    assert b"not a request" in await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_another_user_is_not_listened_to(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    reader, writer = await say(supervisor, b"")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert supervisor.asked.empty()
    writer.close()


async def test_who_has_left_is_answered_in_vain(supervisor: Supervisor) -> None:
    _, writer = await say(supervisor, b'{"type":"drain","name":"engine-0"}\n')
    _, ticket = await supervisor.asked.get()
    writer.close()
    await writer.wait_closed()
    for number in range(3):
        supervisor.server.answer(ticket, Progress(str(number)))
        await asyncio.sleep(0)
    supervisor.server.answer(ticket, Done(True, "done"))
    reader, writer = await say(supervisor, b'{"type":"drain","name":"engine-1"}\n')
    _, ticket = await supervisor.asked.get()
    supervisor.server.answer(ticket, Done(True, "done"))
    assert await reader.readline()
    writer.close()


async def test_the_command_shows_the_answers_and_ends_accordingly(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    for ok, code in ((True, 0), (False, 1)):
        flags = {"command": "scale", "engines": "2", "api_servers": None, "run_dir": str(supervisor.directory)}
        command = asyncio.create_task(asyncio.to_thread(run, flags))
        request, ticket = await supervisor.asked.get()
        assert request == Scale(engines=2)
        supervisor.server.answer(ticket, Progress("starting engine-1"))
        supervisor.server.answer(ticket, Done(ok, "the end"))
        assert await command == code
        out, err = capfd.readouterr()
        assert "starting engine-1" in out and ("the end" in (out if ok else err))
