"""What goes wrong for a caller, and the one table that turns it into HTTP (OpenAI API reference, error codes)."""

import enum
import math
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from api_server.chat_template import TemplateRefused
from api_server.generation_backend import GenerationFailed, NoModel, Rejected, UnknownModel
from protocol.messages import RejectReason, TokenAllowance

MAX_ERROR_CHARS = 500
"""Longest error text; what a caller sent is never repeated at length."""
RATE_LIMIT_HEADERS = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")
RETRY_AFTER_S = 1.0
"""Advice for faults that pass soon: a supervisor restarts an engine core within seconds."""

RANK_HEADER = "x-data-parallel-rank"
"""Names the wanted engine core; headers are named in small letters, as in HTTP/2."""


class _Row(NamedTuple):
    status: int
    type: str
    code: str | None


class ErrorKind(enum.Enum):
    """Kinds of error, each with its HTTP status, OpenAI error type and code."""

    INVALID = _Row(400, "invalid_request_error", None)
    NOT_SUPPORTED = _Row(400, "invalid_request_error", "unsupported_parameter")
    CONTEXT_LENGTH = _Row(400, "invalid_request_error", "context_length_exceeded")
    NO_KEY = _Row(401, "invalid_request_error", "invalid_api_key")
    NO_ROUTE = _Row(404, "invalid_request_error", "unknown_url")
    NO_SUCH_MODEL = _Row(404, "invalid_request_error", "model_not_found")
    WRONG_METHOD = _Row(405, "invalid_request_error", "method_not_allowed")
    TOO_SLOW = _Row(408, "invalid_request_error", "request_timeout")
    TOO_LARGE = _Row(413, "invalid_request_error", "request_too_large")
    MEDIA_TYPE = _Row(415, "invalid_request_error", "unsupported_media_type")
    OVERLOADED = _Row(429, "rate_limit_error", "overloaded")
    RATE_LIMITED = _Row(429, "rate_limit_error", "rate_limit_exceeded")
    INTERNAL = _Row(500, "server_error", "internal_error")
    UNAVAILABLE = _Row(503, "service_unavailable_error", "unavailable")
    TIMED_OUT = _Row(504, "server_error", "timeout")
    DRAINING = _Row(503, "service_unavailable_error", "shutting_down")


class ApiError(Exception):
    """An answer other than success."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        allowance: TokenAllowance | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message if len(message) <= MAX_ERROR_CHARS else message[:MAX_ERROR_CHARS] + "..."
        self.param = param
        """Path of the offending field, such as `messages[0].content`."""
        self.retry_after_s = retry_after_s
        self.allowance = allowance


def invalid(message: str, param: str | None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(ErrorKind.INVALID, message, param)


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """Body of every answer other than success."""

    error: ErrorBody


_encoder = msgspec.json.Encoder()


def encode_error(error: ApiError) -> bytes:
    """OpenAI's error object as JSON; body of a response, or data of an event when the stream has begun."""
    row = error.kind.value
    return _encoder.encode(ErrorEnvelope(ErrorBody(error.message, row.type, error.param, row.code)))


def error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    """The response for this error."""
    headers = dict(headers or {})
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.allowance is not None:
        headers |= _rate_limit_headers(error.allowance)
    if error.kind is ErrorKind.TIMED_OUT:  # OpenAI's clients would repeat it, with as little time
        headers["x-should-retry"] = "false"
    if error.kind is ErrorKind.NO_KEY:
        headers["www-authenticate"] = "Bearer"
    if error.kind in (ErrorKind.DRAINING, ErrorKind.TOO_SLOW):
        headers["connection"] = "close"
    return Response(encode_error(error), error.kind.value.status, headers, media_type="application/json")


def _rate_limit_headers(allowance: TokenAllowance) -> dict[str, str]:
    """OpenAI's (API reference, "Rate limits", headers)."""
    values = (str(allowance.limit_tokens), str(allowance.remaining_tokens), f"{allowance.reset_s:.3f}s")
    return dict(zip(RATE_LIMIT_HEADERS, values, strict=True))


DomainError = UnknownModel | NoModel | Rejected | GenerationFailed | TemplateRefused
"""What the layers below the routes raise; `from_domain` says what each means in HTTP."""

_REJECTIONS = {
    RejectReason.NO_ENGINE: ErrorKind.UNAVAILABLE,
    RejectReason.OVERLOADED: ErrorKind.OVERLOADED,
    RejectReason.DUPLICATE: ErrorKind.UNAVAILABLE,
    RejectReason.RATE_LIMITED: ErrorKind.RATE_LIMITED,
}


def from_domain(error: DomainError) -> ApiError:
    """The HTTP meaning of a domain error."""
    match error:
        case UnknownModel():
            return ApiError(ErrorKind.NO_SUCH_MODEL, str(error), "model")
        case NoModel():
            return ApiError(ErrorKind.UNAVAILABLE, str(error), retry_after_s=RETRY_AFTER_S)
        case Rejected(reason=RejectReason.UNKNOWN_MODEL):
            return ApiError(ErrorKind.NO_SUCH_MODEL, error.message, "model")
        case Rejected(reason=RejectReason.NO_SUCH_ENGINE):
            return ApiError(ErrorKind.INVALID, error.message, RANK_HEADER)
        case Rejected(reason=RejectReason.TIMED_OUT):
            return ApiError(ErrorKind.TIMED_OUT, error.message)
        case Rejected():
            retry_after_s = error.retry_after_s or RETRY_AFTER_S
            return ApiError(_REJECTIONS[error.reason], error.message, None, retry_after_s, error.allowance)
        case GenerationFailed(field=field) if field:
            return ApiError(ErrorKind.INVALID, error.message, field)
        case GenerationFailed(retryable=True):
            return ApiError(ErrorKind.UNAVAILABLE, error.message, retry_after_s=RETRY_AFTER_S)
        case GenerationFailed():
            return ApiError(ErrorKind.INTERNAL, error.message)
        case TemplateRefused():
            return ApiError(ErrorKind.INVALID, str(error), "messages")
