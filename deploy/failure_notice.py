"""Remembers the last error that this process logged, so that its supervisor can repeat it at the very end."""

import logging

from protocol.lifeline import Lifeline, Notice


class LastError(logging.Handler):
    """Owner of the last message of level error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message; of an exception also its last line."""
        error = record.exc_info[1] if record.exc_info else None
        self.text = record.getMessage() if error is None else f"{record.getMessage()}: {error!r}"

    def tell(self, lifeline: Lifeline) -> None:
        """Sends the supervisor what went wrong, if anything was said to."""
        if self.text is not None:
            lifeline.notify(Notice("failed", detail=self.text))
