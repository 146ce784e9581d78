"""A short form of `make chaos`: random strikes for a while, with all that it demands."""

import pytest
from chaos_streams import Stream
from random_chaos import run_chaos

pytestmark = pytest.mark.cluster

SECONDS = 15.0
SEED = 4


@pytest.mark.timeout(240)
def test_random_strikes_are_not_noticed_and_leave_nothing_behind(undisturbed: list[Stream]) -> None:
    run_chaos(SECONDS, SEED, undisturbed)
