"""Log set-up shared by all processes: one line per life-cycle event on standard error, as text or JSON."""

import logging
import sys
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _JsonFormatter(logging.Formatter):
    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_s": record.created,
            "level": record.levelname.lower(),
            "process": self._process_name,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logging(process_name: str, level: LogLevel, log_format: LogFormat) -> None:
    """Sends all loggers of this process to standard error. Call once, at the start."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter(process_name))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s %(levelname).1s {process_name} %(message)s", "%Y-%m-%d %H:%M:%S")
        )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
