"""Tells how far the engine cores have loaded their model: a line with a bar now and then, none for what loads quickly.

A bar that is drawn anew in each line, on a terminal too: the processes of the cluster write to it beside the
supervisor, and one that stays in its place by moving the cursor would garble both.
"""

import logging

from protocol.lifeline import Notice

logger = logging.getLogger("shoal.supervisor")

LINE_EVERY_S = 5.0
BAR_CELLS = 20


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
            logger.info("%s loads %s %3.0f %% %s", name, bar(notice.progress), notice.progress * 100, notice.detail)

    def forget(self, name: str) -> None:
        """The process loads no more: it is ready, or dead."""
        self._next_line_s.pop(name, None)


def bar(progress: float) -> str:
    """`[#####...............]` for a quarter; progress outside of 0 to 1 counts as the nearer end."""
    filled = int(min(max(progress, 0.0), 1.0) * BAR_CELLS)
    return f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}]"
