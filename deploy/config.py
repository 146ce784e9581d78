"""Options of `shoal serve`, and which options of the roles it passes on."""

from typing import Annotated

import msgspec
from msgspec import Meta

from api_server.config import ApiServerConfig
from coordinator.config import CoordinatorConfig
from deploy.options import Option, options_of
from engine_core.config import EngineCoreConfig


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal serve`: what only the supervisor needs."""

    model: Annotated[
        str, Meta(description="MLX model folder, hub id (owner/name), demo, or sim:... for a simulated device")
    ] = "demo"
    engines: Annotated[int, Meta(ge=0, le=256, description="engine cores to run")] = 2
    api_servers: Annotated[int, Meta(ge=0, le=256, description="API servers to run")] = 2
    run_dir: Annotated[
        str | None,
        Meta(description="directory of the ipc sockets, private to this user; default: a new one, removed at exit"),
    ] = None

    join: Annotated[
        str | None,
        Meta(description="tcp://HOST:PORT where another machine's coordinator listens (its --listen): run none here"),
    ] = None
    machine: Annotated[
        str | None,
        Meta(description="what this machine is called in its members' names; default, with --join: the host's name"),
    ] = None
    output_host: Annotated[
        str | None,
        Meta(
            description="address of this machine where its API servers receive outputs of other machines; "
            "default: that of --listen, or the one from which --join is reached"
        ),
    ] = None
    output_port: Annotated[
        int, Meta(ge=0, le=65280, description="and the first port for it, each API server takes one; 0 takes free ones")
    ] = 0


SERVE_OPTIONS = options_of(ServeConfig)

# What the supervisor decides itself is not passed on: addresses, names, shares of the memory, the listening socket.
COORDINATOR_OPTIONS = options_of(CoordinatorConfig, ("clients_address", "engines_address", "cluster_address"))
ENGINE_CORE_OPTIONS = options_of(EngineCoreConfig, ("engines_address", "model", "name", "memory_share"))
API_SERVER_OPTIONS = options_of(
    ApiServerConfig,
    ("clients_address", "cluster_address", "output_address", "advertised_address", "name", "fd", "metrics_dir"),
)


def all_serve_options() -> tuple[Option, ...]:
    """All options of `shoal serve`; one that several roles have (log_level, drain_timeout_s) appears once."""
    by_name: dict[str, Option] = {}
    for option in SERVE_OPTIONS + API_SERVER_OPTIONS + ENGINE_CORE_OPTIONS + COORDINATOR_OPTIONS:
        by_name.setdefault(option.name, option)
    return tuple(by_name.values())
