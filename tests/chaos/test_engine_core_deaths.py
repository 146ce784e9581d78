"""An engine core dies, hangs, drains or is stopped while streams run: no client sees it, no token differs."""

import psutil
import pytest
from chaos_streams import Stream, assert_undisturbed, bodies, median_longest_gap_s, run_streams
from shoal_process import ShoalProcess, running_shoal

pytestmark = pytest.mark.cluster

STEP_S = 0.02
SIM = f"sim:decode_ms={STEP_S * 1_000:g},decode_ms_per_row=0"
REQUESTS = bodies(64, max_tokens=150)


@pytest.fixture(scope="module")
def expected() -> list[Stream]:
    """What an undisturbed engine core gives."""
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as shoal:
        streams = run_streams(shoal, REQUESTS)
    assert_undisturbed(streams, streams)
    return streams


def engine_core(shoal: ShoalProcess, name: str = "engine-0") -> psutil.Process:
    (found,) = [child for child in shoal.children("engine-core") if f"--name={name}" in child.cmdline()]
    return found


def resumed(shoal: ShoalProcess, **labels: str) -> float:
    return shoal.metric("shoal:requests_resumed_total", **labels)


def test_kill_9_of_one_of_four_engine_cores_is_not_noticed_by_64_streams(expected: list[Stream]) -> None:
    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = run_streams(shoal, REQUESTS, disturb=lambda: engine_core(shoal).kill(), after_s=1.5)
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="engine_lost") >= 8, "the engine core had nothing"
        assert median_longest_gap_s(streams) <= STEP_S + 1.0
        shoal.wait_for(lambda: shoal.engines_up() == 4, 20, "the engine core does not come back")
        assert shoal.metric("shoal:num_requests_running") == 0
