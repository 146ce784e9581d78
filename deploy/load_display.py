"""Tells how far the engine cores have loaded their model: a line now and then, none for what loads quickly.

Lines, not bars, on a terminal too: the processes of the cluster write to it beside the supervisor, and what moves a
cursor there would garble both.
"""

import logging

from protocol.lifeline import Notice

logger = logging.getLogger("shoal.supervisor")

LINE_EVERY_S = 5.0


class LoadDisplay:
    """Owner of what has been said about each loading process."""

    def __init__(self) -> None:
        self._next_line_s: dict[str, float] = {}

    def update(self, name: str, notice: Notice, now_s: float) -> None:
        """Takes in a notice of a process; says so when it has been loading for a while, and again now and then."""
        if notice.state != "loading":
            self.forget(name)
        elif now_s >= self._next_line_s.setdefault(name, now_s + LINE_EVERY_S):
            self._next_line_s[name] = now_s + LINE_EVERY_S
            logger.info("%s loads: %.0f %% %s", name, notice.progress * 100, notice.detail)

    def forget(self, name: str) -> None:
        """The process loads no more: it is ready, or dead."""
        self._next_line_s.pop(name, None)
