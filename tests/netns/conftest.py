"""Three machines, or the reason why not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_streams import Stream, assert_undisturbed, bodies, run_streams
from namespaces import CannotTry, Switch
from shoal_process import running_shoal
from three_machines import Machine


@pytest.fixture
def switch() -> Iterator[Switch]:
    """Three namespaces that nothing joins yet."""
    try:
        switch = Switch(3)
    except CannotTry as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield switch
    switch.close()


@pytest.fixture
def machines(switch: Switch, tmp_path: Path) -> Iterator[list[Machine]]:
    """Each with a key of its own, nothing running."""
    machines = [Machine(namespace, tmp_path) for namespace in switch.machines]
    yield machines
    for machine in reversed(machines):
        machine.stop()


@pytest.fixture
def allowed(machines: list[Machine], tmp_path: Path) -> Path:
    """The file with the public keys of all."""
    path = tmp_path / "allowed.keys"
    path.write_text("".join(f"{machine.public_key} machine {machine.letter}\n" for machine in machines))
    return path


@pytest.fixture(scope="session")
def expected() -> list[Stream]:
    """24 streams as they come from a single engine core on one machine."""
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as shoal:
        streams = run_streams(shoal, bodies(24, max_tokens=150))
    assert_undisturbed(streams, streams)
    return streams
