"""API keys: which there are, and the check in front of every route but the probes."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from api_server.config import ApiServerConfig
from api_server.errors import ApiError, ErrorKind, error_response
from protocol.tenants import BadTenants, key_digest, load_tenants, tenant_id

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Exact paths that need no key: probes and scrapers have none."""
_TENANT = "shoal.tenant"
"""Where the check leaves in the ASGI scope whose key it was."""


class BadKeys(ValueError):
    """The configured keys cannot be used; the message says why."""


class ApiKeys:
    """The accepted keys, as digests. Immutable."""

    def __init__(self, keys: Iterable[str], of_tenants: Iterable[bytes] = ()) -> None:
        """`of_tenants` are digests of keys whose requests count for a tenant's limits."""
        self._tenants = {digest: tenant_id(digest) for digest in of_tenants}
        self._digests = [*(key_digest(key.encode()) for key in keys), *self._tenants]

    @property
    def required(self) -> bool:
        """Whether any key is configured."""
        return bool(self._digests)

    def accept(self, candidates: list[bytes]) -> str | None:
        """The tenant of the first candidate that is a key, empty for a key without limits; None when none is a key.

        Takes the same time whichever key it is, and however wrong.
        """
        found: list[bytes] = []
        for candidate in candidates:
            digest = key_digest(candidate)
            found += [known for known in self._digests if hmac.compare_digest(digest, known)]
        return self._tenants.get(found[0], "") if found else None


def load_keys(config: ApiServerConfig) -> ApiKeys:
    """The keys of the options, of the key file (one a line; # starts a comment line) and of the tenants file.

    Raises BadKeys, OSError.
    """
    keys = list(config.api_key)
    if config.api_key_file is not None:
        lines = [line.strip() for line in Path(config.api_key_file).read_text("utf-8").splitlines()]
        from_file = [line for line in lines if line and not line.startswith("#")]
        if not from_file:  # an empty file must not open the server to everybody
            raise BadKeys(f"API key file {config.api_key_file} holds no key")
        keys += from_file
    if not all(key.strip() for key in keys):
        raise BadKeys("an API key must not be empty")
    return ApiKeys(keys, _tenants_digests(config.tenants_file))


def tenant_of(scope: Scope) -> str:
    """Whose limits this request counts for; empty for nobody's."""
    tenant: str = scope.get(_TENANT, "")
    return tenant


def _tenants_digests(tenants_file: str | None) -> list[bytes]:
    if tenants_file is None:
        return []
    try:
        tenants = load_tenants(Path(tenants_file))
    except BadTenants as error:
        raise BadKeys(str(error)) from error
    if not tenants:  # as with an empty key file
        raise BadKeys(f"tenants file {tenants_file} has no tenant")
    return [digest for tenant in tenants.values() for digest in tenant.digests]


class AuthMiddleware:
    """Answers 401 to requests without a valid key, also for paths that do not exist."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.required or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        tenant = self._keys.accept(_candidates(scope["headers"]))
        if tenant is not None:
            return await self._app({**scope, _TENANT: tenant}, receive, send)
        error = ApiError(ErrorKind.NO_KEY, "a valid API key is required (Authorization: Bearer KEY)")
        return await error_response(error)(scope, receive, send)


def _candidates(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    candidates = [value.strip() for name, value in headers if name == b"x-api-key"]
    for name, value in headers:
        scheme, _, credentials = value.strip().partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            candidates.append(credentials.strip())
    return candidates
