"""The outermost layer of each HTTP request: its id, its count, and the last resort for errors."""

import logging
import re
import secrets
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_server.disconnect import CallerGone
from api_server.errors import ApiError, ErrorKind, error_response
from api_server.generation_backend import HttpMetrics

logger = logging.getLogger("shoal.api_server")

CALLER_GONE_STATUS = 499
"""nginx's code for a caller that closed the connection before there was an answer."""
_USABLE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestBorder:
    """Echoes a usable X-Request-Id or makes one. The id is for logs and callers; nothing is looked up by it."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, routes: Sequence[Route]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = _request_id(scope["headers"])
        status = CALLER_GONE_STATUS
        in_flight = int(scope["path"].startswith("/v1/"))  # probes and scrapes do not count

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self._metrics.http_in_flight_changed(in_flight)
        try:
            await self._app(scope, receive, send_with_id)
        except (CallerGone, ClientDisconnect):
            pass
        except Exception:
            logger.exception("request %s failed", request_id)
            if status != CALLER_GONE_STATUS:  # the status line is out: uvicorn closes the connection
                raise
            error = ApiError(ErrorKind.INTERNAL, f"internal server error (request {request_id})")
            await error_response(error)(scope, receive, send_with_id)
        finally:
            self._metrics.http_in_flight_changed(-in_flight)
            self._metrics.observe_http(self._label(scope["path"]), status)

    def _label(self, path: str) -> str:
        """The route that a path belongs to: a closed set, so that a metric's labels cannot be made up by callers."""
        return next((route.path_format for route in self._routes if route.path_regex.match(path)), "other")


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if _USABLE_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
