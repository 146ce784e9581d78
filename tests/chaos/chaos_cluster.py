"""Whom to strike, and what a cluster says of it afterwards."""

import psutil
from shoal_process import ShoalProcess

STEP_S = 0.02
SIM = f"sim:decode_ms={STEP_S * 1_000:g},decode_ms_per_row=0"


def member(shoal: ShoalProcess, role: str, name: str = "") -> psutil.Process:
    """The process of this role and name."""
    children = shoal.children(role)
    (found,) = [child for child in children if not name or f"--name={name}" in child.cmdline()]
    return found


def resumed(shoal: ShoalProcess, **labels: str) -> float:
    """How often a generation went on as another attempt."""
    return shoal.metric("shoal:requests_resumed_total", **labels)


def assert_back_and_idle(shoal: ShoalProcess, engines: int) -> None:
    """All engine cores serve again, by themselves, and nothing is left running."""
    shoal.wait_for(lambda: shoal.engines_up() == engines, 20, "an engine core does not come back")
    shoal.wait_for(lambda: shoal.metric("shoal:num_requests_running") == 0, 5, "a request is left over")
    assert shoal.metric("shoal:num_generations") == 0
