"""API keys: which there are, and the check in front of every route but the probes."""

import hashlib
import hmac
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from api_server.config import ApiServerConfig
from api_server.errors import ApiError, ErrorKind, error_response

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Exact paths that need no key: probes and scrapers have none."""


class BadKeys(ValueError):
    """The configured keys cannot be used; the message says why."""


class ApiKeys:
    """The accepted keys, as digests. Immutable."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @property
    def required(self) -> bool:
        """Whether any key is configured."""
        return bool(self._digests)

    def accept(self, candidates: list[bytes]) -> bool:
        """Whether one of the candidates is a key. Takes the same time whichever key it is, and however wrong."""
        found = False
        for candidate in candidates:
            digest = _digest(candidate)
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)
        return found


def load_keys(config: ApiServerConfig) -> ApiKeys:
    """The keys of the options and of the key file (one a line; # starts a comment line). Raises BadKeys, OSError."""
    keys = list(config.api_key)
    if config.api_key_file is not None:
        lines = [line.strip() for line in Path(config.api_key_file).read_text("utf-8").splitlines()]
        from_file = [line for line in lines if line and not line.startswith("#")]
        if not from_file:  # an empty file must not open the server to everybody
            raise BadKeys(f"API key file {config.api_key_file} holds no key")
        keys += from_file
    if not all(key.strip() for key in keys):
        raise BadKeys("an API key must not be empty")
    return ApiKeys(tuple(keys))


class AuthMiddleware:
    """Answers 401 to requests without a valid key, also for paths that do not exist."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.required or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        if self._keys.accept(_candidates(scope["headers"])):
            return await self._app(scope, receive, send)
        error = ApiError(ErrorKind.NO_KEY, "a valid API key is required (Authorization: Bearer KEY)")
        return await error_response(error)(scope, receive, send)


def _candidates(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    candidates = [value.strip() for name, value in headers if name == b"x-api-key"]
    for name, value in headers:
        scheme, _, credentials = value.strip().partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            candidates.append(credentials.strip())
    return candidates


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
