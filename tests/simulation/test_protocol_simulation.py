"""Some hundred histories of a whole cluster in memory; `make simulate` runs as many as one likes."""

from collections import Counter

import pytest
from protocol_simulation import History

HISTORIES = 300


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_whatever_dies_each_request_ends_once_with_its_own_tokens(first: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(first, first + 50):
        try:
            ends += History(seed).run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
    assert ends["whole"] > 0.8 * ends.total(), "hardly anything ran"


def test_a_history_depends_on_its_seed_alone() -> None:
    assert [History(seed).run() for seed in (7, 8)] == [History(seed).run() for seed in (7, 8)]
