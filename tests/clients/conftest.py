"""One cluster for all clients."""

from collections.abc import Iterator

import pytest
from openai import OpenAI
from shoal_process import ShoalProcess, running_shoal


@pytest.fixture(scope="session")
def demo_cluster() -> Iterator[ShoalProcess]:
    """Two engine cores and two API servers on the demo model."""
    with running_shoal("--allowed-origins", "https://chat.example.org") as shoal:
        yield shoal


@pytest.fixture
def client(demo_cluster: ShoalProcess) -> OpenAI:
    return OpenAI(base_url=f"{demo_cluster.url}/v1", api_key="none", max_retries=0)
