"""How the machines of a cluster find one another, by the options of `shoal serve`."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.config import ServeConfig
from deploy.errors import StartError
from deploy.launch import Launch
from deploy.machine_links import MachineLinks, machine_links
from deploy.run_directory import RunDirectory
from deploy.supervised_process import Role
from protocol.curve import new_key_pair, save_secret_key

PAIR = new_key_pair()
LISTEN = {"listen": "tcp://10.0.0.1:7700"}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    save_secret_key(PAIR, tmp_path / "machine.key")
    return {"secret_key_file": str(tmp_path / "machine.key")}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / "run")
    yield directory
    directory.remove()


def test_alone_everything_is_ipc(directory: RunDirectory) -> None:
    links = machine_links(ServeConfig(), {})
    assert links == MachineLinks()
    assert links.coordinator(directory).engines == directory.engines
    assert links.output_address(directory, "api-0") == directory.outputs("api-0")
    assert links.member_name("engine-0") == links.name_here("engine-0") == "engine-0"


def test_who_listens_keeps_ipc_for_its_own_and_takes_outputs_over_tcp(
    keys: dict[str, Any], directory: RunDirectory
) -> None:
    links = machine_links(ServeConfig(output_port=7710), {**keys, **LISTEN})
    assert links.coordinator(directory).clients == directory.clients
    assert links.output_address(directory, "api-2") == "tcp://10.0.0.1:7712"
    assert machine_links(ServeConfig(api_servers=0), {**keys, **LISTEN}).output_host is None


def test_who_joins_is_called_after_its_machine(keys: dict[str, Any], directory: RunDirectory) -> None:
    config = ServeConfig(join="tcp://127.0.0.1:7700")
    values = {**keys, "coordinator_key": PAIR.public}
    links = machine_links(config, values)
    assert links.coordinator(directory) == (
        "tcp://127.0.0.1:7700",
        "tcp://127.0.0.1:7701",
        "tcp://127.0.0.1:7702",
    )
    assert links.machine == socket.gethostname()
    assert links.name_here(links.member_name("engine-0")) == "engine-0"
    assert links.name_here("engine-0@elsewhere") == "engine-0@elsewhere"
    assert links.output_address(directory, "api-1") == "tcp://127.0.0.1:0", "from where the coordinator is reached"


def test_a_machine_that_joins_runs_no_coordinator(keys: dict[str, Any], directory: RunDirectory) -> None:
    config = ServeConfig(join="tcp://10.0.0.1:7700", machine="b", output_host="10.0.0.2")
    values = {**keys, "coordinator_key": PAIR.public}
    launch = Launch("sim:", 1, 1, values, machine_links(config, values))
    specs = dict(launch.specs(directory, 42, {}))
    assert set(specs) == {Role.ENGINE_CORE, Role.API_SERVER}
    engine, api = specs[Role.ENGINE_CORE], specs[Role.API_SERVER]
    assert {"--name=engine-0@b", "--engines-address=tcp://10.0.0.1:7701"} < set(engine.command)
    assert {"--name=api-0@b", "--output-address=tcp://10.0.0.2:0"} < set(api.command)
    for spec in (engine, api):
        assert f"--secret-key-file={keys['secret_key_file']}" in spec.command
        assert f"--coordinator-key={PAIR.public}" in spec.command
    assert engine.name == "engine-0", "so it is called on this machine"


@pytest.mark.parametrize(
    ("config", "values", "named"),
    [
        ({"engines": 0}, {}, "--listen and --join"),
        ({"api_servers": 0}, {}, "--listen and --join"),
        ({"join": "tcp://10.0.0.1:7700"}, LISTEN, "not both"),
        ({}, {**LISTEN, "secret_key_file": None}, "--secret-key-file"),
        ({"join": "tcp://10.0.0.1:7700"}, {}, "--coordinator-key"),
        ({"join": "tcp://10.0.0.1:7700"}, {"coordinator_key": "short"}, "--coordinator-key"),
        (
            {"join": "tcp://10.0.0.1:7700", "engines": 0, "api_servers": 0},
            {"coordinator_key": PAIR.public},
            "nothing to run",
        ),
        ({}, {"listen": "tcp://0.0.0.0:7700"}, "--output-host"),
        ({"output_host": "0.0.0.0"}, LISTEN, "--output-host"),
        ({}, {"listen": "tcp://10.0.0.1"}, "needs a port"),
        ({}, {"listen": "tcp://10.0.0.1:65534"}, "from 1 to 65533"),
        ({}, {"listen": "ipc:///run/s"}, "must be tcp"),
        ({}, {**LISTEN, "allowed_keys_file": "/no/such"}, "/no/such"),
        ({}, {**LISTEN, "secret_key_file": "/no/such"}, "/no/such"),
    ],
)
def test_what_does_not_go_together_is_named(
    config: dict[str, Any], values: dict[str, Any], named: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(StartError, match=named):
        machine_links(ServeConfig(**config), {**keys, **values})
