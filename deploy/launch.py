"""What each process of a cluster is started with: arguments, environment, inherited sockets."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from deploy.cache import CACHE_VARIABLE
from deploy.config import API_SERVER_OPTIONS, COORDINATOR_OPTIONS, ENGINE_CORE_OPTIONS
from deploy.machine import cores, openblas_environment
from deploy.machine_links import MachineLinks
from deploy.options import PREFIX, Option, as_environment, as_flags
from deploy.run_directory import RunDirectory
from deploy.supervised_process import Role

SIMULATED = "sim:"
_LISTENING = ("host", "port")
"""What the supervisor used up when it bound the HTTP socket."""
_SHOAL = (sys.executable, "-P", "-m", "deploy.cli")
"""-P: a folder called `protocol` where the user happens to stand must not be imported."""
_THREADS = "OPENBLAS_NUM_THREADS"


class ProcessSpec(msgspec.Struct, frozen=True):
    """All that it takes to start one process, any number of times."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """The whole of it."""
    inherited_fds: tuple[int, ...] = ()


class Launch(msgspec.Struct, frozen=True):
    """What `shoal serve` has decided before it starts anything."""

    model: str
    """A folder, or sim:..."""
    engines: int
    api_servers: int
    values: Mapping[str, Any]
    """Options that were given, to be passed on to the roles that have them."""
    links: MachineLinks = MachineLinks()

    def specs(
        self, directory: RunDirectory, http_fd: int, environment: Mapping[str, str]
    ) -> list[tuple[Role, ProcessSpec]]:
        """One for each process, the coordinator (if it runs here) first. `environment` is the supervisor's own."""
        names = [
            *([] if self.links.joined else [(Role.COORDINATOR, "coordinator")]),
            *((Role.ENGINE_CORE, f"engine-{i}") for i in range(self.engines)),
            *((Role.API_SERVER, f"api-{i}") for i in range(self.api_servers)),
        ]
        return [(role, self.spec(role, name, directory, http_fd, environment)) for role, name in names]

    def spec(
        self, role: Role, name: str, directory: RunDirectory, http_fd: int, environment: Mapping[str, str]
    ) -> ProcessSpec:
        """One process of this role and (on this machine) name, among as many others as this says.

        `http_fd` goes to the API servers.
        """
        inherited = {
            name: value for name, value in environment.items() if not name.startswith(PREFIX) or name == CACHE_VARIABLE
        }
        match role:
            case Role.COORDINATOR:
                return self._coordinator(directory, inherited)
            case Role.ENGINE_CORE:
                return self._engine_core(name, directory, inherited)
            case Role.API_SERVER:
                return self._api_server(name, directory, http_fd, inherited)

    def _coordinator(self, directory: RunDirectory, environment: Mapping[str, str]) -> ProcessSpec:
        own = {
            "clients_address": directory.clients,
            "engines_address": directory.engines,
            "cluster_address": directory.cluster,
        }
        return self._spec("coordinator", Role.COORDINATOR, own, COORDINATOR_OPTIONS, environment)

    def _engine_core(self, name: str, directory: RunDirectory, environment: Mapping[str, str]) -> ProcessSpec:
        own: dict[str, Any] = {
            "engines_address": self.links.coordinator(directory).engines,
            "model": self.model,
            "name": self.links.member_name(name),
        }
        if self.engines > 1:
            own["memory_share"] = 1 / self.engines
        environment = {_THREADS: str(max(1, cores() // self.engines)), **environment}
        environment.update(openblas_environment(environment))
        return self._spec(name, Role.ENGINE_CORE, own, ENGINE_CORE_OPTIONS, environment)

    def _api_server(self, name: str, directory: RunDirectory, fd: int, environment: Mapping[str, str]) -> ProcessSpec:
        coordinator = self.links.coordinator(directory)
        own = {
            "clients_address": coordinator.clients,
            "cluster_address": coordinator.cluster,
            "output_address": self.links.output_address(directory, name),
            "name": self.links.member_name(name),
            "fd": fd,
            "metrics_dir": str(directory.metrics),
        }
        passed_on = tuple(option for option in API_SERVER_OPTIONS if option.name not in _LISTENING)
        return self._spec(name, Role.API_SERVER, own, passed_on, environment, (fd,))

    def _spec(
        self,
        name: str,
        role: Role,
        own: Mapping[str, Any],
        passed_on: tuple[Option, ...],
        environment: Mapping[str, str],
        inherited_fds: tuple[int, ...] = (),
    ) -> ProcessSpec:
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in own.items() if value is not None]
        command = (*_SHOAL, role.value, *flags, *as_flags(passed_on, self.values))
        secrets = as_environment(passed_on, self.values)
        return ProcessSpec(name, command, {**environment, **secrets}, inherited_fds)


def hub_name(asked: str, folder: Path) -> str | None:
    """The model's hub id when its folder is one of the hub's cache, which is named after a commit; None otherwise."""
    return asked if folder.parent.name == "snapshots" and not Path(asked).expanduser().is_dir() else None


def weight_bytes(folder: Path) -> int:
    """Size of a model folder's weights."""
    return sum(file.stat().st_size for file in folder.glob("model*.safetensors"))


def pull_spec(model: str, environment: Mapping[str, str]) -> ProcessSpec:
    """The process that fetches a model; its ready notice carries the folder."""
    return ProcessSpec("pull", (*_SHOAL, "pull", model), dict(environment))
