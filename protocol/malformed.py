"""Says in the log what was dropped, without flooding it. Whoever publishes a count keeps it."""

import logging
from collections.abc import Callable

logger = logging.getLogger("shoal.protocol")

LOG_INTERVAL_S = 1.0
"""At most one line per this many seconds; the line tells how many frames it stands for."""


class MalformedLog:
    """Owner of one process's log lines about malformed frames."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_log_s = float("-inf")
        self._unlogged = 0

    def drop(self, error: Exception, peer: bytes = b"") -> None:
        """Logs one dropped message (rate-limited): why and whose (its routing id), never the content."""
        self._unlogged += 1
        now_s = self._clock()
        if now_s >= self._next_log_s:
            who = f" from {peer.decode(errors='replace')!a}" if peer else ""
            logger.warning("malformed message dropped%s: %s (%d since the last line)", who, error, self._unlogged)
            self._unlogged = 0
            self._next_log_s = now_s + LOG_INTERVAL_S
