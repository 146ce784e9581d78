"""Counts what was dropped, and says so once per event without flooding the log."""

import logging
from collections.abc import Callable

logger = logging.getLogger("shoal.protocol")

LOG_INTERVAL_S = 1.0
"""At most one line per this many seconds; the line tells how many frames it stands for."""


class MalformedCounter:
    """Owner of one process's count of malformed frames."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_log_s = float("-inf")
        self._unlogged = 0
        self.total = 0

    def drop(self, error: Exception, peer: bytes = b"") -> None:
        """Counts one dropped message and logs it (rate-limited): why and whose (its routing id), never the content."""
        self.total += 1
        self._unlogged += 1
        now_s = self._clock()
        if now_s >= self._next_log_s:
            who = f" from {peer.decode(errors='replace')!a}" if peer else ""
            logger.warning("malformed message dropped%s: %s (%d since the last line)", who, error, self._unlogged)
            self._unlogged = 0
            self._next_log_s = now_s + LOG_INTERVAL_S
