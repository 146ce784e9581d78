"""min-p, top-k and top-p as lower bounds on a token's weight, for many rows at once.

A weight is a probability over the largest probability of its row: float32 [rows, tokens], 1 for the likeliest token.
Tokens of equal weight stay or go together, as in vLLM. All operations work row by row, so that no row's bound depends
on the other rows.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.largest_weights import descending, largest, lowest_of, lowest_to_reach, row_sums
from protocol.sampling import SamplingParams

NUCLEUS_HEADS = (256, 4096)
"""Largest weights to look at for top-p without top-k, one after the other, where the host may wait.

At [32, 49152] the first takes 4 ms, the second 0.6 ms a row, and a search of all 1.5 to 3 ms a row, on 2 x86 cores.
SmolLM2-135M writing prose at temperature 1 and top-p 0.95 came to the second in 3 of 10 tokens, never to the third."""


class RowFilters:
    """min-p, top-k and top-p of a fixed list of rows, as columns [rows, 1]."""

    def __init__(self, rows: Sequence[SamplingParams]) -> None:
        self._min_p = column([row.min_p for row in rows])
        self._top_p = column([row.top_p for row in rows])
        self._top_k = [row.top_k for row in rows]
        self._has_min_p = any(row.min_p > 0 for row in rows)
        self._has_top_p = any(row.top_p < 1 for row in rows)

    def apply_to_head(self, weights: mx.array, head: int) -> mx.array:
        """The weights with those of excluded tokens set to 0; all rows have a top-k, of at most `head`.

        `weights` may leave out tokens that are not among the `head` likeliest; as likely as the last one of top-k,
        those do not count.
        """
        likeliest = descending(weights, min(head, weights.shape[1]))
        places = mx.array([min(k, likeliest.shape[1]) - 1 for k in self._top_k])[:, None]
        bounds = mx.maximum(self._min_p, mx.take_along_axis(likeliest, places, axis=1))
        if self._has_top_p:
            kept = mx.where(likeliest >= bounds, likeliest, 0.0)
            found = _nucleus_bounds(kept, self._top_p * mx.sum(kept, axis=-1, keepdims=True))
            bounds = mx.where(self._top_p < 1, found, bounds)
        return mx.where(weights >= bounds, weights, 0.0)

    def apply(self, weights: mx.array, may_wait: bool) -> mx.array:
        """The weights [rows, vocabulary] with those of excluded tokens set to 0.

        With `may_wait` the host may wait for the device, which makes top-p cheaper: see NUCLEUS_HEADS. Without, all
        weights are searched.
        """
        floors = self._min_p
        if any(k > 0 for k in self._top_k):
            vocab_size = weights.shape[1]
            counts = [min(k, vocab_size) if k > 0 else vocab_size for k in self._top_k]
            floors = mx.maximum(floors, lowest_of(weights, mx.array(counts)[:, None]))
            kept = mx.where(weights >= floors, weights, 0.0)
        else:
            kept = mx.where(weights >= floors, weights, 0.0) if self._has_min_p else weights
        if not self._has_top_p:
            return kept
        # With top-p 1 even the smallest is kept: no sum is looked for.
        sums = mx.where(self._top_p < 1, self._top_p, 0.0) * row_sums(kept)
        bounds = _nucleus_search(kept, sums, NUCLEUS_HEADS if may_wait else ())
        return mx.where(kept >= mx.where(self._top_p < 1, bounds, 0.0), kept, 0.0)


def _nucleus_search(kept: mx.array, sums: mx.array, heads: Sequence[int]) -> mx.array:
    """[rows, 1]: the lowest weight of the fewest likeliest tokens that come to `sums`; waits once for each head."""
    if not heads or heads[0] >= kept.shape[1]:
        return lowest_to_reach(kept, sums)
    likeliest = largest(kept, heads[0])
    bounds = _nucleus_bounds(likeliest, sums)
    is_open: list[bool] = (bounds <= likeliest[:, -1:])[:, 0].tolist()  # type: ignore[assignment]
    open_rows = [i for i, is_too_short in enumerate(is_open) if is_too_short]
    if open_rows:
        indices = mx.array(open_rows)
        bounds[indices] = _nucleus_search(kept[indices], sums[indices], heads[1:])
    return bounds


def _nucleus_bounds(likeliest: mx.array, sums: mx.array) -> mx.array:
    """[rows, 1]: the last of the fewest first weights (they descend) that together reach the sum.

    The likeliest is always among them, also where top_p x the sum is too small for float32.
    """
    before = mx.cumsum(likeliest, axis=-1) - likeliest
    nucleus = ((before < sums) | (before == 0)) & (likeliest > 0)
    return mx.min(mx.where(nucleus, likeliest, mx.inf), axis=-1, keepdims=True)


def column(values: Sequence[float]) -> mx.array:
    """float32 [rows, 1]"""
    return mx.array(list(values), mx.float32)[:, None]
