import mlx.core as mx
import pytest

from engine_core.row_selection import put_rows, take_rows


@pytest.mark.parametrize("indices", [[0], [1, 3], [0, 1, 2, 3]])
def test_rows_go_back_to_where_they_came_from(indices: list[int]) -> None:
    values = mx.arange(8).reshape(4, 2)
    places = mx.array(indices)
    own = take_rows(values, places)
    assert own.tolist() == [[2 * i, 2 * i + 1] for i in indices]
    result = put_rows(values, places, own + 100)
    expected = [[2 * i + 100 * (i in indices), 2 * i + 1 + 100 * (i in indices)] for i in range(4)]
    assert result.tolist() == expected
    assert values.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
