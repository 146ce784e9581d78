"""Who may ask for how much: the file of tenants, and the ids by which processes speak of API keys.

The file is TOML, a table for each tenant:

    [team-a]
    keys = ["sk-..."]             # or key_sha256 = ["..."], hexadecimal, where no key shall stand
    tokens_per_minute = 200000    # prompt and output together
    max_streams = 16              # generations at once

API servers read the keys in it, which they accept, and the coordinator reads the limits. What travels between them is
a digest of the key, never the key.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_TENANTS = 1024
"""Tables in a file: each is a label of a metric."""
MAX_NAME_CHARS = 64
TENANT_ID_CHARS = 32
"""Hexadecimal digits of a key's SHA-256: 128 bits tell keys apart."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class BadTenants(ValueError):
    """The file of tenants cannot be used; the message says why, and holds no key."""


class TenantTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the file. A limit that is left out is none."""

    keys: tuple[str, ...] = ()
    key_sha256: tuple[Sha256, ...] = ()
    tokens_per_minute: Annotated[int, Meta(ge=1)] | None = None
    max_streams: Annotated[int, Meta(ge=1)] | None = None

    @property
    def digests(self) -> list[bytes]:
        """SHA-256 of each key."""
        return [key_digest(key.encode()) for key in self.keys] + [bytes.fromhex(text) for text in self.key_sha256]


def key_digest(key: bytes) -> bytes:
    """SHA-256 of an API key."""
    return hashlib.sha256(key).digest()


def tenant_id(digest: bytes) -> str:
    """What an API key with this digest is called between processes."""
    return digest.hex()[:TENANT_ID_CHARS]


def load_tenants(path: Path) -> dict[str, TenantTable]:
    """The tables by name. Raises BadTenants, also for a file that cannot be read."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadTenants(f"tenants file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTenants(f"tenants file {path}: {error}") from error
    if len(tables) > MAX_TENANTS:
        raise BadTenants(f"tenants file {path}: {len(tables)} tenants, at most {MAX_TENANTS} are possible")
    tenants = {name: _table(path, name, table) for name, table in tables.items()}
    for digest, name, other in _shared_keys(tenants):
        raise BadTenants(f"tenants file {path}: [{name}] and [{other}] have a key in common ({tenant_id(digest)})")
    return tenants


def _table(path: Path, name: str, table: object) -> TenantTable:
    if not (0 < len(name) <= MAX_NAME_CHARS and name.isprintable()):
        raise BadTenants(f"tenants file {path}: a name is 1 to {MAX_NAME_CHARS} printable characters")
    try:
        tenant = msgspec.convert(table, TenantTable)
    except msgspec.ValidationError as error:
        raise BadTenants(f"tenants file {path}: [{name}]: {error}") from error
    if not all(key.strip() for key in tenant.keys):
        raise BadTenants(f"tenants file {path}: [{name}]: a key must not be empty")
    if not tenant.digests:
        raise BadTenants(f"tenants file {path}: [{name}] has neither keys nor key_sha256")
    return tenant


def _shared_keys(tenants: dict[str, TenantTable]) -> Iterator[tuple[bytes, str, str]]:
    owners: dict[bytes, str] = {}
    for name, tenant in tenants.items():
        for digest in set(tenant.digests):
            if digest in owners:
                yield digest, owners[digest], name
            owners[digest] = name
