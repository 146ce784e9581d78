"""How the members on this machine and those on others find one another: addresses, names, keys."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from deploy.config import ServeConfig
from deploy.errors import StartError
from deploy.run_directory import RunDirectory
from protocol.addresses import CoordinatorAddresses, coordinator_addresses, is_everywhere, tcp_address, tcp_host
from protocol.curve import Keyring, load_keyring
from protocol.doorkeeper import read_allowed_keys
from protocol.errors import AddressError, BadKey


class MachineLinks(msgspec.Struct, frozen=True):
    """What a supervisor knows of its place in the cluster; by default it is alone."""

    joined: CoordinatorAddresses | None = None
    """Of the coordinator on another machine; None: it runs here."""
    machine: str = ""
    """Part of the names of its members, which are unique in the cluster; empty: not needed."""
    output_host: str | None = None
    """Address of this machine at which its API servers receive outputs over TCP; None: over ipc."""
    output_port: int = 0
    """Of the first API server, the next one has the next; 0: free ones."""
    keyring: Keyring = Keyring()

    def coordinator(self, directory: RunDirectory) -> CoordinatorAddresses:
        """Where the members on this machine find the coordinator."""
        return self.joined or CoordinatorAddresses(directory.clients, directory.engines, directory.cluster)

    def member_name(self, name: str) -> str:
        """What a process is called in the cluster: `engine-0`, or `engine-0@machine`."""
        return f"{name}@{self.machine}" if self.machine else name

    def name_here(self, member_name: str) -> str:
        """What this machine calls a member of the cluster, if it is its own."""
        return member_name.removesuffix(f"@{self.machine}") if self.machine else member_name

    def output_address(self, directory: RunDirectory, name: str) -> str:
        """Where the API server of this name on this machine (api-0, api-1, ...) receives outputs."""
        if self.output_host is None:
            return directory.outputs(name)
        number = int(name.rpartition("-")[2])
        return tcp_address(self.output_host, self.output_port + number if self.output_port else 0)


def machine_links(config: ServeConfig, values: Mapping[str, Any]) -> MachineLinks:
    """From the options of `shoal serve`. Raises StartError for what does not go together, or is no key."""
    join = config.join
    base: str | None = join or values.get("listen")
    if base is None:
        if not (config.engines and config.api_servers):
            raise StartError("--engines 0 and --api-servers 0 are for one of several machines: see --listen and --join")
        return MachineLinks()
    _check_together(config, values)
    try:
        keyring = load_keyring(values["secret_key_file"], values.get("coordinator_key"))
        if path := values.get("allowed_keys_file"):
            read_allowed_keys(Path(path))
        addresses = coordinator_addresses(base)
    except (BadKey, AddressError) as error:
        raise StartError(str(error)) from error
    return MachineLinks(
        joined=addresses if join else None,
        machine=config.machine or (socket.gethostname() if join else ""),
        output_host=_output_host(config, addresses, is_joining=join is not None) if config.api_servers else None,
        output_port=config.output_port,
        keyring=keyring,
    )


def _check_together(config: ServeConfig, values: Mapping[str, Any]) -> None:
    if config.join and values.get("listen"):
        raise StartError("--listen is for the machine with the coordinator, --join for all others: not both")
    if not values.get("secret_key_file"):
        raise StartError("--listen and --join need --secret-key-file: `shoal keys make FILE` makes one")
    if config.join and not values.get("coordinator_key"):
        raise StartError("--join needs --coordinator-key, the public key of the coordinator's machine")
    if config.join and not config.engines and not config.api_servers:
        raise StartError("--engines 0 and --api-servers 0 leave nothing to run")


def _output_host(config: ServeConfig, coordinator: CoordinatorAddresses, is_joining: bool) -> str:
    if config.output_host is not None:
        if is_everywhere(config.output_host):
            raise StartError(f"--output-host {config.output_host}: engine cores cannot connect to that")
        return config.output_host
    host = tcp_host(coordinator.clients)
    if is_joining:
        return _own_address_towards(host)
    if is_everywhere(host):
        raise StartError(f"--listen takes connections at {host}: give --output-host, the address that others reach")
    return host


def _own_address_towards(host: str) -> str:
    """The address that this machine has in the network by which it reaches the host. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise StartError(f"no way to {host} is known ({error.strerror}): give --output-host") from error
