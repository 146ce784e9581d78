"""Batched model runner: attention with or without windows, recurrent and convolutional layers.

Each sequence has a row (slot) of shared buffers. Decoding is one forward over a range of rows, each at its own
position; prefill is a forward over a view of one row. To join or to leave moves no data. Rows in the range that do
not decode in this step run as dummies: they feed token 0 at their own next free position, which the next real
token of that row overwrites, and attend only to their own row; their recurrent state stays as it was.

A recurrent state has no place for what comes before a sequence: its first token finds no state at all, as in mlx-lm,
and what a model makes of that need not be zeros. So a sequence whose first token is a decode row (a prompt of one
token) takes that token in a forward of its own. Nor has a state a part for each token: models that have one store no
blocks of prefixes, all others do.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.block_store import BlockStore
from engine_core.device import BlockId, BlockRestore, BlockSave, DecodeRow, PrefillChunk
from engine_core.kv_budget import round_kv_length
from engine_core.model_runner import LanguageModel, PlanError
from engine_core.slot_buffers import SlotBuffers
from engine_core.slot_layout import CacheLayout, LayerLayout, flat_layouts
from engine_core.slot_shape import SlotShape, grown
from engine_core.slot_views import DecodeStep, DecodeView, PrefillView, StateView, nested
from protocol.prefix_hash import BLOCK_TOKENS


class SlotRunner:
    """A ModelRunner; see the module."""

    def __init__(
        self, model: LanguageModel, layouts: Sequence[CacheLayout], capacity_tokens: int, max_rows: int
    ) -> None:
        """`capacity_tokens` bounds rows x length beyond what `reserve` asks for, and the stored blocks beside them;
        `max_rows` bounds rows likewise."""
        self.stores_blocks = all(isinstance(layout, LayerLayout) for layout in flat_layouts(layouts))
        self._blocks = BlockStore()
        self._model = model
        self._layouts = tuple(layouts)
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
        self._resize(rows, length, len(self._blocks))

    def _resize(self, rows: int, length: int, blocks: int) -> None:
        """To a shape of at least so many rows of this length, with room beside it for so many blocks."""
        room_tokens = self._capacity_tokens - blocks * BLOCK_TOKENS
        held = self._buffers.shape
        if held.tokens > room_tokens:
            held = SlotShape()  # blocks take the place of rows that nobody needs now
        if blocks:  # beyond half of the cache more rows than asked would soon be in their way again
            room_tokens = min(room_tokens, max(self._capacity_tokens // 2, rows * round_kv_length(length)))
        self._buffers.resize(grown(held, rows, length, room_tokens, self._max_rows))

    def prefill(self, chunk: PrefillChunk) -> None:
        """See ModelRunner. The logits are never evaluated, which spares the output layer."""
        self._check_room(chunk.row, chunk.start, len(chunk.token_ids))
        self._feed_row(chunk.row, chunk.start, chunk.token_ids)
        mx.eval(self._buffers.arrays())

    def _feed_row(self, row: int, start: int, token_ids: Sequence[int]) -> mx.array:
        """Logits [1, n, vocabulary] of a forward over one row, not evaluated."""
        layers = [PrefillView(layer, row, start) for layer in self._buffers.layers]
        states = [StateView(state.read(slice(row, row + 1), start)) for state in self._buffers.states]
        logits = self._model(mx.array([list(token_ids)]), cache=nested(self._layouts, iter(layers), iter(states)))
        mx.eval([view.cache for view in states])  # what reads the buffers is done before they are written: in place
        self._store_states(slice(row, row + 1), states)
        self._cached[row] += len(token_ids)
        return logits

    def decode(self, decodes: Sequence[DecodeRow]) -> mx.array:
        """See ModelRunner."""
        if len({decode.row for decode in decodes}) != len(decodes):
            raise PlanError("a row decodes twice in one step")
        for decode in decodes:
            self._check_room(decode.row, decode.start, 1)
        alone = [decode for decode in decodes if self._buffers.states and decode.start == 0]
        logits = [self._feed_row(decode.row, 0, [decode.token_id])[:, 0] for decode in alone]
        together = [decode for decode in decodes if decode not in alone]
        if together:
            logits.append(self._decode_together(together))
        if len(logits) == 1:
            return logits[0]
        computed = [decode.row for decode in (*alone, *together)]
        return mx.concatenate(logits)[mx.array([computed.index(decode.row) for decode in decodes])]

    def _decode_together(self, decodes: Sequence[DecodeRow]) -> mx.array:
        fed = {decode.row: decode for decode in decodes}
        rows = range(min(fed), max(fed) + 1)
        tokens = [fed[row].token_id if row in fed else 0 for row in rows]
        last_position = max(decode.start for decode in decodes)
        positions = [self._cached.get(row, 0) for row in rows]
        step = DecodeStep(rows.start, positions, last_position, self._buffers.shape.length)
        layers = [DecodeView(layer, step) for layer in self._buffers.layers]
        states = [StateView(state.read(step.rows)) for state in self._buffers.states]
        views = nested(self._layouts, iter(layers), iter(states))
        logits = self._model(mx.array(tokens)[:, None], cache=views)[:, 0]
        changed = None if len(fed) == len(rows) else mx.array([row in fed for row in rows])
        self._store_states(step.rows, states, changed)
        for row in fed:
            self._cached[row] += 1
        if list(fed) == list(rows):
            return logits
        return logits[mx.array([row - rows.start for row in fed])]

    def _store_states(self, rows: slice, views: Sequence[StateView], changed: mx.array | None = None) -> None:
        for state, view in zip(self._buffers.states, views, strict=True):
            state.store(rows, view.cache, changed)

    def drop_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """See ModelRunner."""
        self._blocks.drop(block_ids)

    def save_blocks(self, saves: Sequence[BlockSave]) -> None:
        """See ModelRunner."""
        for save in saves:
            if not self.stores_blocks or self._cached.get(save.row, 0) < save.start + BLOCK_TOKENS:
                raise PlanError(f"row {save.row}: there is no block at {save.start} to be stored")
        blocks = len(self._blocks) + len(saves)
        if saves and self._buffers.shape.tokens + blocks * BLOCK_TOKENS > self._capacity_tokens:
            self._resize(max(self._cached) + 1, max(self._cached.values()), blocks)
        self._blocks.save(saves, self._buffers.planes())

    def restore_blocks(self, restore: BlockRestore) -> None:
        """See ModelRunner."""
        tokens = len(restore.block_ids) * BLOCK_TOKENS
        self._check_room(restore.row, 0, tokens)
        self._blocks.restore(restore.block_ids, self._buffers.planes(), restore.row)
        self._cached[restore.row] = tokens

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
