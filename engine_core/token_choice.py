"""How the tokens of a batch's rows are chosen from their logits: in up to four groups of rows.

Greedy rows take the likeliest token. Rows with a top-k of up to 256 look at the likeliest 64 or 256 tokens and those
beside them, so that they compute few exponentials: each row in the same way in every batch. All others look at the
whole vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from engine_core.largest_weights import candidates
from engine_core.row_selection import take_rows
from engine_core.token_filters import RowFilters, column
from engine_core.uniforms import uniform
from engine_core.weighted_draw import draw, weights_of
from protocol.sampling import GREEDY_BELOW, SamplingParams

HEADS = (64, 256)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken."""
    return params.temperature < GREEDY_BELOW


class TokenChoice:
    """The groups of a fixed list of rows; holds no state."""

    def __init__(self, params: Sequence[SamplingParams], may_wait: bool) -> None:
        """`may_wait` as in RowFilters.apply."""
        self._params = tuple(params)
        ways: list[_Way] = [_Greedy(), *(_FromHead(head) for head in HEADS), _FromAll(may_wait)]
        places: dict[_Way, list[int]] = {way: [] for way in ways}
        for place, row in enumerate(params):
            places[next(way for way in ways if way.suits(row))].append(place)
        self._groups = [_Group(way, own, [params[i] for i in own]) for way, own in places.items() if own]

    def choose(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """Tokens, uint32 [rows], of logits [rows, vocabulary]; `positions` are those of the tokens in their output."""
        tokens = mx.zeros(len(self._params), mx.uint32)
        for group in self._groups:
            chosen = group.choose(take_rows(logits, group.indices), [positions[i] for i in group.places])
            if len(self._groups) == 1:
                return chosen.astype(mx.uint32)
            tokens[group.indices] = chosen.astype(mx.uint32)
        return tokens


class _Way(Protocol):
    """One way to choose tokens."""

    def suits(self, params: SamplingParams) -> bool:
        """Whether it can be used for a row; the first that can is."""
        ...

    def choose(self, logits: mx.array, temperatures: mx.array, filters: RowFilters, uniforms: mx.array) -> mx.array:
        """Tokens [rows], of logits [rows, vocabulary]; temperatures and uniform numbers are [rows, 1]."""
        ...


class _Group:
    """Rows that are chosen for in one way."""

    def __init__(self, way: _Way, places: Sequence[int], params: Sequence[SamplingParams]) -> None:
        self.places = tuple(places)
        self.indices = mx.array(list(places))
        self._way = way
        self._seeds = [row.seed for row in params]
        self._temperatures = column([row.temperature for row in params])
        self._filters = RowFilters(params)

    def choose(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        uniforms = [uniform(seed, position) for seed, position in zip(self._seeds, positions, strict=True)]
        return self._way.choose(logits, self._temperatures, self._filters, column(uniforms))


class _Greedy:
    def suits(self, params: SamplingParams) -> bool:
        return is_greedy(params)

    def choose(self, logits: mx.array, temperatures: mx.array, filters: RowFilters, uniforms: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)


class _FromHead:
    """A top-k of at most `head`."""

    def __init__(self, head: int) -> None:
        self._head = head

    def suits(self, params: SamplingParams) -> bool:
        return 0 < params.top_k <= self._head

    def choose(self, logits: mx.array, temperatures: mx.array, filters: RowFilters, uniforms: mx.array) -> mx.array:
        found = candidates(logits.astype(mx.float32), self._head, -mx.inf)
        weights = filters.apply_to_head(weights_of(found.values, temperatures), self._head)
        return found.ids(draw(weights, uniforms)[:, None])[:, 0]


class _FromAll:
    def __init__(self, may_wait: bool) -> None:
        self._may_wait = may_wait

    def suits(self, params: SamplingParams) -> bool:
        return True

    def choose(self, logits: mx.array, temperatures: mx.array, filters: RowFilters, uniforms: mx.array) -> mx.array:
        weights = weights_of(logits.astype(mx.float32), temperatures)
        return draw(filters.apply(weights, self._may_wait), uniforms)
