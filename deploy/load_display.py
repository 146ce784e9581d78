"""Shows how far the engine cores have loaded their model: bars on a terminal, a line now and then elsewhere."""

import logging
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from protocol.lifeline import Notice

logger = logging.getLogger("shoal.supervisor")

_LINE_EVERY = 0.25
"""Without a terminal, a line each time this share of the model was loaded."""


class LoadDisplay:
    """Owner of what is shown while engine cores load."""

    def __init__(self, on_terminal: bool | None = None) -> None:
        self._on_terminal = sys.stderr.isatty() if on_terminal is None else on_terminal
        self._bars = Progress(
            TextColumn("{task.fields[process]}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} % {task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar_ids: dict[str, TaskID] = {}
        self._next_line: dict[str, float] = {}

    def update(self, name: str, notice: Notice) -> None:
        """Takes in a notice of a process; those about loading are shown, any other ends its bar."""
        if notice.state == "loading":
            self._show(name, notice)
        else:
            self.forget(name)

    def _show(self, name: str, notice: Notice) -> None:
        if not self._on_terminal:
            if notice.progress >= self._next_line.get(name, 0.0):
                self._next_line[name] = notice.progress + _LINE_EVERY
                logger.info("%s loads: %.0f %% %s", name, notice.progress * 100, notice.detail)
            return
        if not self._bar_ids:
            self._bars.start()
        if name not in self._bar_ids:
            self._bar_ids[name] = self._bars.add_task("", total=1.0, process=name, detail="")
        self._bars.update(self._bar_ids[name], completed=notice.progress, detail=notice.detail)

    def forget(self, name: str) -> None:
        """The process loads no more: it is ready, or dead."""
        self._next_line.pop(name, None)
        bar = self._bar_ids.pop(name, None)
        if bar is not None:
            self._bars.remove_task(bar)
            if not self._bar_ids:
                self._bars.stop()
