"""The last error of a process reaches its supervisor."""

import logging
import socket

from deploy.failure_notice import LastError
from protocol.lifeline import Lifeline


def told(*messages: str) -> bytes:
    """What a supervisor hears from a process that logged these errors."""
    logger = logging.Logger("of-the-test")
    last_error = LastError()
    logger.addHandler(last_error)
    for message in messages:
        logger.error(message)
    logger.warning("not an error")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        last_error.tell(Lifeline(theirs))
        ours.setblocking(False)
        try:
            return ours.recv(4096)
        except BlockingIOError:
            return b""


def test_the_last_error_is_told() -> None:
    assert told("first", "second") == b'{"state":"failed","detail":"second"}\n'


def test_nothing_is_told_when_nothing_was_said() -> None:
    assert told() == b""


def test_of_an_exception_its_text_is_told() -> None:
    last_error = LastError()
    logger = logging.Logger("of-the-test")
    logger.addHandler(last_error)
    try:
        raise ValueError("no such layer")
    except ValueError:
        logger.exception("engine core failed")
    assert last_error.text == "engine core failed: ValueError('no such layer')"
