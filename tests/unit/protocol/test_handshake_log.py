"""A connection that is broken off again and again is logged once a minute."""

import pytest

from protocol.handshake_log import LOG_INTERVAL_S, HandshakeLog


def test_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    log = HandshakeLog("the coordinator at tcp://10.0.0.1:1", lambda: now_s)
    for _ in range(5):
        log.broken_off()
    (line,) = caplog.messages
    assert "tcp://10.0.0.1:1" in line
    assert "--coordinator-key" in line
    now_s += LOG_INTERVAL_S
    log.broken_off()
    assert len(caplog.messages) == 2
