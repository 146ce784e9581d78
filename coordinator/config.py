"""Options of the coordinator, declared once: flags, environment variables and TOML keys come from here."""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.heartbeats import HEARTBEAT_S, SILENCE_S
from protocol.logs import LogFormat, LogLevel


class CoordinatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal coordinator`."""

    clients_address: Annotated[str, Meta(description="ZeroMQ address where API servers connect")]
    engines_address: Annotated[str, Meta(description="ZeroMQ address where engine cores connect")]
    cluster_address: Annotated[str, Meta(description="ZeroMQ address where the cluster state is published")]
    listen: Annotated[
        str | None,
        Meta(description="tcp://HOST:PORT where other machines join, on that port and the next two; needs a key"),
    ] = None
    secret_key_file: Annotated[
        str | None, Meta(description="file with this machine's secret key, made by shoal keys; encrypts TCP links")
    ] = None
    allowed_keys_file: Annotated[
        str | None, Meta(description="file with the public keys of the machines that may connect, one a line")
    ] = None
    max_requests: Annotated[
        int,
        Meta(ge=1, description="requests in flight per model, beyond which new ones are refused with 429"),
    ] = 4096
    max_waiting_requests: Annotated[
        int,
        Meta(ge=1, description="requests that may wait per engine core, beyond which new ones are refused with 429"),
    ] = 1024
    max_queued_prefill_tokens: Annotated[
        int,
        Meta(ge=1, description="prompt tokens that may wait per engine core, beyond which new requests get a 429"),
    ] = 1_048_576
    tenants_file: Annotated[str | None, Meta(description="TOML file of tenants: their API keys and limits")] = None
    heartbeat_timeout_s: Annotated[
        float,
        Meta(
            ge=2 * HEARTBEAT_S,
            description="a member silent for this many seconds is taken for dead (members speak once a second)",
        ),
    ] = SILENCE_S
    log_level: Annotated[LogLevel, Meta(description="least severe log lines to write")] = "info"
    log_format: Annotated[LogFormat, Meta(description="log lines as text or JSON")] = "text"
