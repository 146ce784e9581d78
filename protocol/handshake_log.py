"""Says in the log that a connection is broken off in its handshake, without flooding it."""

import logging
from collections.abc import Callable

logger = logging.getLogger("shoal.protocol")

LOG_INTERVAL_S = 60.0
"""libzmq tries again several times a second."""


class HandshakeLog:
    """Owner of one connection's log lines about that."""

    def __init__(self, peer: str, clock: Callable[[], float]) -> None:
        """`peer` is what the other end is called in the log; `clock` only goes forward, in seconds."""
        self._peer = peer
        self._clock = clock
        self._next_log_s = float("-inf")

    def broken_off(self) -> None:
        """The other end has hung up: it is about to die, or does not know the key that we expect of it."""
        now_s = self._clock()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + LOG_INTERVAL_S
            text = "%s breaks off the handshake (trying again): is --coordinator-key its public key?"
            logger.warning(text, self._peer)
