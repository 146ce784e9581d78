"""The log lines about malformed frames."""

import logging

import pytest

from protocol.errors import ProtocolError
from protocol.malformed import LOG_INTERVAL_S, MalformedLog


class FakeClock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_one_line_a_second_tells_of_every_message(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    log = MalformedLog(clock)
    for _ in range(1000):
        log.drop(ProtocolError("odd"))
    assert len(caplog.records) == 1
    clock.now_s += LOG_INTERVAL_S
    log.drop(ProtocolError("odd"))
    assert len(caplog.records) == 2
    assert "1000 since the last line" in caplog.messages[1]


def test_the_line_says_who_and_why(caplog: pytest.LogCaptureFixture) -> None:
    MalformedLog(FakeClock()).drop(ProtocolError("too short"), b"engine-0/ab")
    assert "'engine-0/ab'" in caplog.text
    assert "too short" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_a_peer_cannot_write_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    MalformedLog(FakeClock()).drop(ProtocolError("odd"), b"x\n2026-01-01 forged \xff\x1b[0m")
    assert "\n" not in caplog.messages[0]
    assert "\x1b" not in caplog.messages[0]
