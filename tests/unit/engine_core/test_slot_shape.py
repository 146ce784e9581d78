from hypothesis import given
from hypothesis import strategies as st

from engine_core.slot_shape import SlotShape, grown

shapes = st.builds(SlotShape, st.integers(0, 64), st.integers(0, 8).map(lambda steps: steps * 256))


@given(shapes, st.integers(1, 64), st.integers(1, 5000), st.integers(0, 50_000))
def test_what_is_asked_for_fits_and_the_rest_stays_within_capacity(
    shape: SlotShape, rows: int, length: int, capacity_tokens: int
) -> None:
    result = grown(shape, rows, length, capacity_tokens, max_rows=64)
    assert result.rows >= rows and result.length >= length and result.length % 256 == 0
    needed = rows * (length + 255) // 256 * 256
    if result != shape:
        assert result.rows <= 64
        assert result.tokens <= max(capacity_tokens, needed + 255 * rows)


@given(shapes, st.integers(1, 64), st.integers(1, 5000))
def test_a_shape_that_is_large_enough_stays(shape: SlotShape, rows: int, length: int) -> None:
    if rows <= shape.rows and length <= shape.length:
        assert grown(shape, rows, length, 10**6, 64) is shape
    else:
        assert grown(shape, rows, length, 10**6, 64) != shape


def test_rows_that_join_one_by_one_cause_few_copies() -> None:
    shape, copies = SlotShape(), 0
    for rows in range(1, 65):
        new = grown(shape, rows, 100, 10**6, 64)
        copies += new != shape
        shape = new
    assert copies == 7
    assert shape == SlotShape(64, 256)


def test_rows_nobody_asks_for_make_way_for_length() -> None:
    assert grown(SlotShape(64, 256), 2, 8000, 64 * 256, 64) == SlotShape(2, 8192)


def test_length_nobody_asks_for_makes_way_for_rows() -> None:
    assert grown(SlotShape(1, 8192), 40, 200, 40 * 256, 64) == SlotShape(40, 256)
