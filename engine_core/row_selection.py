"""Some rows of a batch out of its array and back; nothing is copied when they are all of them, in order."""

import mlx.core as mx


def take_rows(values: mx.array, indices: mx.array) -> mx.array:
    """[indices, ...] of [batch, ...]; the indices are ascending and each at most once."""
    return values if indices.shape[0] == values.shape[0] else values[indices]


def put_rows(values: mx.array, indices: mx.array, own: mx.array) -> mx.array:
    """The batch with `own` in the place of these rows; `values` stays as it is."""
    if indices.shape[0] == values.shape[0]:
        return own
    result = values[:]  # a new handle: item assignment changes the array that it is called on
    result[indices] = own
    return result
