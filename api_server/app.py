"""The HTTP application: routes, layers around them, errors."""

from typing import get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_server.auth import AuthMiddleware, load_keys
from api_server.chat import plan_chat
from api_server.completions import plan_completion
from api_server.config import ApiServerConfig
from api_server.errors import ApiError, DomainError, ErrorKind, error_response, from_domain
from api_server.generation_backend import GenerationBackend, HttpMetrics
from api_server.generation_endpoint import GenerationEndpoint
from api_server.request_border import RequestBorder
from api_server.status_routes import StatusRoutes
from api_server.uploads import Uploads

_HTTP_KINDS = {404: ErrorKind.NO_ROUTE, 405: ErrorKind.WRONG_METHOD}


def create_app(
    backend: GenerationBackend, metrics: HttpMetrics, uploads: Uploads, config: ApiServerConfig
) -> Starlette:
    """The application of one API server. Raises auth.BadKeys, or OSError for a key file that cannot be read."""
    status = StatusRoutes(backend, metrics)
    chat = GenerationEndpoint(backend, plan_chat, uploads, config.request_timeout_s)
    completions = GenerationEndpoint(backend, plan_completion, uploads, config.request_timeout_s)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", status.models),
        Route("/v1/models/{model:path}", status.model),
        Route("/health", status.health),
        Route("/ready", status.ready),
        Route("/version", status.version),
        Route("/metrics", status.metrics),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestBorder, metrics=metrics, routes=routes),
            Middleware(AuthMiddleware, keys=load_keys(config)),
        ],
        exception_handlers={
            ApiError: _answer_api_error,
            HTTPException: _answer_http_exception,
            **dict.fromkeys(get_args(DomainError), _answer_domain_error),
        },
    )
    app.router.redirect_slashes = False
    return app


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DomainError)
    return error_response(from_domain(error))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, wrong method (with its Allow header)."""
    assert isinstance(error, HTTPException)
    # From the scope: request.url also decodes the Host header and the query, which may be any bytes.
    message = f"{request.method[:16]} {request.scope['path'][:200]}: {error.detail}"
    return error_response(ApiError(_HTTP_KINDS[error.status_code], message), dict(error.headers or {}))
