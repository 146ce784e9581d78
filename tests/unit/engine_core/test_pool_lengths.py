from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine_core.pool_lengths import SHORTEST_SLOT, pool_lengths


def test_lengths_double_up_to_the_longest_sequence() -> None:
    assert pool_lengths(2) == (256,)
    assert pool_lengths(257) == (256,)
    assert pool_lengths(258) == (256, 512)
    assert pool_lengths(8192) == (256, 512, 1024, 2048, 4096, 8192)
    assert pool_lengths(10_000) == (256, 512, 1024, 2048, 4096, 8192, 10_240)


@given(st.integers(2, 10**6))
def test_all_but_the_last_token_of_the_longest_sequence_fit(max_model_len: int) -> None:
    lengths = pool_lengths(max_model_len)
    assert lengths[-1] >= max_model_len - 1 > lengths[-1] - SHORTEST_SLOT
    assert all(a < b <= 2 * a for a, b in pairwise(lengths))
