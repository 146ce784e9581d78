"""How the process ends in bounded time, whatever its main thread is doing.

A Python signal handler would not run while the main thread is inside a step that hangs. So the signals' bytes go to a
pipe that a thread of its own reads: the first signal asks the busy loop to drain, a second one, or the time being
up, ends the process on the spot.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

from protocol.exit_codes import ExitCode

logger = logging.getLogger("shoal.engine_core")

STOP_MARGIN_S = 5.0
"""Beyond the drain's own time: for the step that runs at its end, and for the last outputs."""


class ShutdownWatch:
    """Made in the main thread (only there can signals be set up)."""

    def __init__(self, drain_timeout_s: float, on_signal: Callable[[], None]) -> None:
        """`on_signal` is called once, in the watching thread, when the first SIGTERM or SIGINT comes."""
        self._limit_s = drain_timeout_s + STOP_MARGIN_S
        self._on_signal = on_signal
        self._serving = threading.Event()
        self._receiving, sending = socket.socketpair()
        sending.setblocking(False)
        signal.set_wakeup_fd(sending.detach())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts
        start_thread("signals", self._watch)

    def serving(self) -> None:
        """From now on a signal drains; before, there is nothing to drain and it ends the process."""
        self._serving.set()

    def _watch(self) -> None:
        self._receiving.recv(1)
        if not self._serving.is_set():
            logger.info("stopped before the model was loaded")
            os._exit(ExitCode.DRAINED)
        self._on_signal()
        self._receiving.settimeout(self._limit_s)
        try:
            self._receiving.recv(1)
            logger.warning("second signal: ending at once")
        except TimeoutError:
            logger.error("not drained %.1f s after the signal: ending", self._limit_s)
        os._exit(ExitCode.FORCED)


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """A thread on which the process depends: when it raises, the process ends, whatever the others do."""

    def run() -> None:
        try:
            work()
        except Exception:
            logger.exception("thread %s failed: ending", name)
            os._exit(ExitCode.FAULT)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
