"""Fixtures of the wire tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from running_coordinator import short_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    """Closes what a test leaves open."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)
