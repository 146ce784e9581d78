"""What the streams of these tests are compared with."""

import pytest
from chaos_streams import Stream, assert_undisturbed, bodies, run_streams
from shoal_process import running_shoal


@pytest.fixture(scope="session")
def undisturbed() -> list[Stream]:
    """64 streams as they come from a single engine core that nobody strikes."""
    with running_shoal("sim:decode_ms=0", "--engines", "1", "--api-servers", "1") as shoal:
        streams = run_streams(shoal, bodies(64, max_tokens=100))
    assert_undisturbed(streams, streams)
    return streams
