"""The slot layout's bound on memory."""

import pytest

from engine_core.kv_budget import KvBudget, round_kv_length


def test_lengths_are_rounded_up_to_256() -> None:
    assert [round_kv_length(n) for n in (0, 1, 256, 257)] == [0, 256, 256, 512]


def test_rows_times_the_longest_is_bounded() -> None:
    budget = KvBudget(1_024)
    assert budget.fits(4, 256)
    assert not budget.fits(4, 257)
    assert not budget.fits(5, 1)
    assert budget.fits(0, 0)


def test_the_longest_sequence_has_one_token_more_than_its_row() -> None:
    assert KvBudget(1_000).longest_sequence == 769


def test_a_cache_without_a_single_row_is_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        KvBudget(255)
