"""The HTTP application: routes, layers around them, errors."""

from collections.abc import Sequence
from typing import get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_server import api_description
from api_server.auth import AuthMiddleware, load_keys
from api_server.chat import plan_chat
from api_server.completions import plan_completion
from api_server.config import ApiServerConfig
from api_server.errors import RATE_LIMIT_HEADERS, ApiError, DomainError, ErrorKind, error_response, from_domain
from api_server.generation_backend import GenerationBackend, HttpMetrics
from api_server.generation_endpoint import GenerationEndpoint
from api_server.request_border import RequestBorder
from api_server.status_routes import StatusRoutes
from api_server.token_routes import TokenRoutes
from api_server.uploads import Uploads

_HTTP_KINDS = {404: ErrorKind.NO_ROUTE, 405: ErrorKind.WRONG_METHOD}


def create_app(
    backend: GenerationBackend, metrics: HttpMetrics, uploads: Uploads, config: ApiServerConfig
) -> Starlette:
    """The application of one API server. Raises auth.BadKeys, or OSError for a key file that cannot be read."""
    status = StatusRoutes(backend, metrics)
    tokens = TokenRoutes(backend, uploads)
    timing = config.request_timeout_s, config.sse_keep_alive_s
    chat = GenerationEndpoint(backend, plan_chat, uploads, *timing)
    completions = GenerationEndpoint(backend, plan_completion, uploads, *timing)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/v1/models", status.models),
        Route("/v1/models/{model:path}", status.model),
        Route("/health", status.health),
        Route("/ready", status.ready),
        Route("/version", status.version),
        Route("/metrics", status.metrics),
        Route("/openapi.json", api_description.document),
        Route("/docs", api_description.page),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestBorder, metrics=metrics, routes=routes),
            *_cors(config.allowed_origins),
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


def _cors(allowed_origins: Sequence[str]) -> list[Middleware]:
    """Around the key check: browsers ask beforehand, without a key, whether they may call."""
    if not allowed_origins:
        return []
    exposed = ("x-request-id", "retry-after", *RATE_LIMIT_HEADERS)
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=exposed,
        )
    ]


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DomainError)
    return error_response(from_domain(error))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, wrong method (with its Allow header), which OPTIONS asks for."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=dict(error.headers or {}))
    # From the scope: request.url also decodes the Host header and the query, which may be any bytes.
    message = f"{request.method[:16]} {request.scope['path'][:200]}: {error.detail}"
    return error_response(ApiError(_HTTP_KINDS[error.status_code], message), dict(error.headers or {}))
