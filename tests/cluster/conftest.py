"""Clusters shared by the tests that leave them as they found them."""

from collections.abc import Iterator

import pytest
from shoal_process import ShoalProcess, running_shoal


@pytest.fixture(scope="session")
def demo_cluster() -> Iterator[ShoalProcess]:
    """Two engine cores and two API servers on the demo model."""
    with running_shoal() as shoal:
        yield shoal


@pytest.fixture(scope="session")
def sim_cluster() -> Iterator[ShoalProcess]:
    """Two simulated engine cores (5 ms a step) and two API servers."""
    with running_shoal("sim:decode_ms=5,prefill_ms_per_token=0.02") as shoal:
        yield shoal
