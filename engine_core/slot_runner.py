"""Batched model runner for models whose layers all keep a plain KV cache.

Each sequence has a row (slot) of shared buffers. Decoding is one forward over a range of rows, each at its own
position; prefill is a forward over a view of one row. To join or to leave moves no data. Rows in the range that do
not decode in this step run as dummies: they feed token 0 at their own next free position, which the next real
token of that row overwrites, and attend only to their own row.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.model_runner import LanguageModel, PlanError
from engine_core.slot_buffers import LayerLayout, SlotBuffers
from engine_core.slot_shape import SlotShape, grown
from engine_core.slot_views import DecodeStep, DecodeView, PrefillView


class SlotRunner:
    """A ModelRunner; see the module."""

    def __init__(
        self, model: LanguageModel, layouts: Sequence[LayerLayout], capacity_tokens: int, max_rows: int
    ) -> None:
        """`capacity_tokens` bounds rows x length beyond what `reserve` asks for; `max_rows` bounds rows likewise."""
        self._model = model
        self._buffers = SlotBuffers(layouts)
        self._capacity_tokens = capacity_tokens
        self._max_rows = max_rows
        self._cached: dict[int, int] = {}
        """Tokens in the KV cache of each taken row."""

    def admit(self, row: int) -> None:
        """See ModelRunner."""
        if row in self._cached:
            raise PlanError(f"row {row} is taken")
        self._cached[row] = 0

    def release(self, row: int) -> None:
        """See ModelRunner."""
        if self._cached.pop(row, None) is None:
            raise PlanError(f"row {row} is not taken")

    def reserve(self, rows: int, length: int) -> None:
        """See ModelRunner. A copy of the cache when it grows, nothing otherwise."""
        if not self._cached:
            self._buffers.resize(SlotShape())
            return
        rows = max(rows, max(self._cached) + 1)
        length = max(length, max(self._cached.values()))
        self._buffers.resize(grown(self._buffers.shape, rows, length, self._capacity_tokens, self._max_rows))

    def prefill(self, chunk: PrefillChunk) -> None:
        """See ModelRunner. The logits are never evaluated, which spares the output layer."""
        self._check_room(chunk.row, chunk.start, len(chunk.token_ids))
        views = [PrefillView(layer, chunk.row, chunk.start) for layer in self._buffers.layers]
        self._model(mx.array([list(chunk.token_ids)]), cache=views)
        self._cached[chunk.row] += len(chunk.token_ids)
        mx.eval(self._buffers.arrays())

    def decode(self, decodes: Sequence[DecodeRow]) -> mx.array:
        """See ModelRunner."""
        fed = {decode.row: decode for decode in decodes}
        if len(fed) != len(decodes):
            raise PlanError("a row decodes twice in one step")
        for decode in decodes:
            self._check_room(decode.row, decode.start, 1)
        rows = range(min(fed), max(fed) + 1)
        tokens = [fed[row].token_id if row in fed else 0 for row in rows]
        logits = self._model(mx.array(tokens)[:, None], cache=self._decode_views(rows, decodes))[:, 0]
        for row in fed:
            self._cached[row] += 1
        if list(fed) == list(rows):
            return logits
        return logits[mx.array([row - rows.start for row in fed])]

    def _decode_views(self, rows: range, decodes: Sequence[DecodeRow]) -> list[DecodeView]:
        positions = [self._cached.get(row, 0) for row in rows]
        last_position = max(decode.start for decode in decodes)
        step = DecodeStep(rows.start, positions, last_position, self._buffers.shape.length)
        return [DecodeView(layer, step) for layer in self._buffers.layers]

    def written_arrays(self) -> list[mx.array]:
        """See ModelRunner."""
        return self._buffers.arrays()

    def _check_room(self, row: int, start: int, tokens: int) -> None:
        cached = self._cached.get(row)
        if cached is None or tokens < 1 or start != cached:
            raise PlanError(f"row {row}: {tokens} tokens at {start}, but the row has {cached} cached")
        if row >= self._buffers.shape.rows or start + tokens > self._buffers.shape.length:
            raise PlanError(f"row {row}: {start + tokens} tokens do not fit {self._buffers.shape}")

    def check_invariants(self) -> None:
        """Asserts that no taken row holds more than the buffers do."""
        self._buffers.check_invariants()
        for row, cached in self._cached.items():
            assert 0 <= cached <= self._buffers.shape.length or cached == 0
            assert row < self._buffers.shape.rows or cached == 0
