"""Entry of an API server's process."""

import asyncio
import logging
from pathlib import Path

import uvloop

from api_server import metrics_files
from api_server.auth import BadKeys
from api_server.config import ApiServerConfig
from api_server.http_socket import BindError
from protocol.errors import AddressError, BadKey
from protocol.exit_codes import ExitCode
from protocol.lifeline import Lifeline

logger = logging.getLogger("shoal.api_server")


def run(config: ApiServerConfig, lifeline: Lifeline) -> int:
    """Runs an API server until a signal ends it. Returns the exit code."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    try:
        if config.metrics_dir is not None:
            metrics_files.prepare(Path(config.metrics_dir))
        from api_server.process import serve  # imports prometheus_client, which reads the environment when imported

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config, lifeline))
    except (AddressError, BadKey, BadKeys, BindError, OSError) as error:
        logger.error("cannot start: %s", error)
        return ExitCode.HOPELESS
    except Exception:
        logger.exception("ended by a fault")
        return ExitCode.FAULT
