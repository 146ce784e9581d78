"""Options of an API server, declared once: flags, environment variables and TOML keys come from here."""

from typing import Annotated

import msgspec
from msgspec import Meta

from api_server.parsers.names import ReasoningParserName, ToolParserName
from protocol.logs import LogFormat, LogLevel


class ApiServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal api-server`."""

    clients_address: Annotated[str, Meta(description="ZeroMQ address of the coordinator's clients socket")]
    cluster_address: Annotated[str, Meta(description="ZeroMQ address of the coordinator's cluster state")]
    output_address: Annotated[str, Meta(description="ZeroMQ address where this API server receives outputs")]
    advertised_address: Annotated[
        str | None,
        Meta(description="address where engine cores reach output_address, where that is another; port 0: the same"),
    ] = None
    secret_key_file: Annotated[
        str | None, Meta(description="file with this machine's secret key, made by shoal keys; encrypts TCP links")
    ] = None
    coordinator_key: Annotated[
        str | None, Meta(description="public key of the coordinator's machine, when it is joined over TCP")
    ] = None
    allowed_keys_file: Annotated[
        str | None, Meta(description="file with the public keys of the machines that may connect, one a line")
    ] = None
    name: Annotated[str, Meta(description="name of this API server, unique in the cluster")] = "api-0"
    host: Annotated[str, Meta(description="HTTP address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="HTTP port; 0 takes a free one")] = 8000
    fd: Annotated[int | None, Meta(description="inherited listening socket, instead of host and port")] = None
    api_key: Annotated[
        tuple[str, ...],
        Meta(description="key that clients must send (repeatable); none: no check", extra={"secret": True}),
    ] = ()
    api_key_file: Annotated[str | None, Meta(description="file with one API key a line")] = None
    tenants_file: Annotated[str | None, Meta(description="TOML file of tenants: their API keys and limits")] = None
    max_body_bytes: Annotated[int, Meta(ge=1024, description="largest request body")] = 16 * 1024 * 1024
    admission_timeout_s: Annotated[
        float, Meta(gt=0, description="seconds a request waits for the coordinator before a 503")
    ] = 30.0
    request_timeout_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="seconds a request may take that does not say so itself (X-Request-Timeout)"),
    ] = None
    resume_timeout_s: Annotated[
        float,
        Meta(gt=0, description="seconds a running request that has lost its engine core waits for another"),
    ] = 120.0
    sse_keep_alive_s: Annotated[
        float, Meta(ge=0, description="seconds of silence after which a stream gets a comment; 0: none")
    ] = 15.0
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="origin whose web pages may call the API (repeatable; * for all); none: no CORS"),
    ] = ()
    drain_timeout_s: Annotated[float, Meta(ge=0, description="after SIGTERM, seconds for open requests to finish")] = (
        30.0
    )
    tool_call_parser: Annotated[
        ToolParserName, Meta(description="how the model writes tool calls; auto: what its chat template says")
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParserName, Meta(description="how the model marks its thoughts; auto: what its chat template says")
    ] = "auto"
    metrics_dir: Annotated[
        str | None,
        Meta(description="directory shared by the API servers of one machine to sum their metrics"),
    ] = None
    log_level: Annotated[LogLevel, Meta(description="least severe log lines to write")] = "info"
    log_format: Annotated[LogFormat, Meta(description="log lines as text or JSON")] = "text"
