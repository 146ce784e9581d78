"""Batched model runner: attention with or without windows, recurrent and convolutional layers.

The KV of each row is in a slot of a pool (slot_buffers). To join or to leave moves no data, whatever the others hold.
How much of a step is one forward depends on what a model's code does with its cache. The self test finds the best level
at which the logits are right:

- FUSED: prefill chunks and decode rows of all pools in one forward over single tokens (ragged_views). What a forward
  costs besides its tokens, above all reading the weights, is paid once a step.
- POOLED_DECODE: the same for decode rows. A chunk is a forward over a view of its slot: recurrent layers need its
  tokens in a row.
- PER_POOL: the decode rows of each pool are a forward over neighbouring slots (slot_views): for models that do more
  with keys, values or masks than to pass them on.

A recurrent state has no place for what comes before a sequence: its first token finds no state at all, as in mlx-lm,
and what a model makes of that need not be zeros. So a sequence whose first token is a decode row (a prompt of one
token) takes that token in a forward of its own. Nor has a state a part for each token: a row starts from stored blocks
only where there is a checkpoint of its states.
"""

import enum
from collections.abc import Iterator, Sequence

import mlx.core as mx

from engine_core.attention_dispatch import keys_attended
from engine_core.device import BlockData, BlockId, DecodeRow, PrefillChunk, Slot, StepPlan
from engine_core.model_runner import LanguageModel
from engine_core.output_head import Selection
from engine_core.prefix_store import PrefixStore
from engine_core.ragged_step import FedChunk, FedToken, RaggedStep
from engine_core.ragged_views import RaggedView, check_attended
from engine_core.row_states import Rows, RowStates
from engine_core.slot_buffers import SlotPools
from engine_core.slot_layout import CacheLayout
from engine_core.slot_table import SlotTable
from engine_core.slot_views import DecodeStep, DecodeView, PrefillView, StateView, nested


class Level(enum.Enum):
    """What is one forward; see the module."""

    FUSED = "prefill and decode in one forward"
    POOLED_DECODE = "decode in one forward"
    PER_POOL = "decode in one forward a pool"


class SlotRunner:
    """A ModelRunner; see the module."""

    def __init__(
        self,
        model: LanguageModel,
        layouts: Sequence[CacheLayout],
        pool_lengths: Sequence[int],
        max_rows: int,
        level: Level,
        selection: Selection,
        max_forward_tokens: int,
    ) -> None:
        """`selection` is the model's (output_head). A forward gets `max_forward_tokens` tokens at most, which bounds
        the memory it takes; decode rows may be more."""
        self.level = level
        self._states = RowStates(layouts, max_rows)
        self.stores_blocks = True
        self.has_states = self._states.exist
        self._model = model
        self._layouts = tuple(layouts)
        self._pools = SlotPools(layouts, pool_lengths)
        self._table = SlotTable(pool_lengths)
        self._prefixes = PrefixStore(layouts, self._pools, self._table, self._states)
        self.block_parts = self._prefixes.block_parts
        self._selection = selection
        self._max_forward_tokens = max_forward_tokens

    def prepare(self, plan: StepPlan) -> None:
        """See ModelRunner."""
        self._prefixes.take(plan)
        for row in plan.releases:
            self._table.release(row)
        self._table.grow(plan.pool_slots)
        self._pools.resize(self._table.pool_slots)
        for move in plan.moves:
            tokens = self._table.tokens_of(move.row)
            left = self._table.move(move.row, move.slot)
            if tokens:
                self._pools.copy(left, move.slot, tokens)
        self._table.shrink(plan.pool_slots)
        self._pools.resize(self._table.pool_slots)
        for admission in plan.admissions:
            self._table.admit(admission.row, admission.slot)
        self._states.reserve(self._table.highest_row + 1)
        self._prefixes.fill(plan)

    def read_block(self, block_id: BlockId) -> BlockData:
        """See ModelRunner."""
        return self._prefixes.read(block_id)

    def forward(
        self, prefills: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array
    ) -> mx.array | None:
        """See ModelRunner."""
        for chunk in prefills:
            self._table.feed(chunk.row, chunk.start, len(chunk.token_ids))
        for decode in decodes:
            self._table.feed(decode.row, decode.start, 1)
        if self.level is Level.FUSED:
            return self._fused(prefills, decodes, token_ids)
        for chunk in prefills:
            for part in _parts(chunk, self._max_forward_tokens):
                self._feed_row(part.row, part.start, mx.array(list(part.token_ids)))
                mx.eval(self.written_arrays())
        return self._decode(decodes, token_ids) if decodes else None

    def score(self, chunk: PrefillChunk) -> mx.array:
        """See ModelRunner."""
        self._table.feed(chunk.row, chunk.start, len(chunk.token_ids))
        if self.level is Level.FUSED:
            return self._ragged([chunk], [], mx.zeros(0, mx.uint32))
        return self._feed_row(chunk.row, chunk.start, mx.array(list(chunk.token_ids)))[0]

    def _fused(
        self, prefills: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array
    ) -> mx.array | None:
        """As few forwards as the limit allows; the last one has the decode rows."""
        waiting: list[PrefillChunk] = []
        for part in (part for chunk in prefills for part in _parts(chunk, self._max_forward_tokens)):
            if sum(len(chunk.token_ids) for chunk in (*waiting, part)) > self._max_forward_tokens:
                self._ragged(waiting, [], token_ids)
                mx.eval(self.written_arrays())
                waiting = []
            waiting.append(part)
        if waiting and sum(len(chunk.token_ids) for chunk in waiting) + len(decodes) > self._max_forward_tokens:
            self._ragged(waiting, [], token_ids)
            mx.eval(self.written_arrays())
            waiting = []
        if not waiting and not decodes:
            return None
        logits = self._ragged(waiting, decodes, token_ids)
        return logits if decodes else None

    def _decode(self, decodes: Sequence[DecodeRow], token_ids: mx.array) -> mx.array:
        alone = [index for index, decode in enumerate(decodes) if self._states.exist and decode.start == 0]
        logits = [self._feed_row(decodes[i].row, 0, token_ids[i : i + 1])[:, 0] for i in alone]
        groups = [alone] if alone else []
        for group in self._groups([i for i in range(len(decodes)) if i not in alone], decodes):
            fed = token_ids if group == list(range(len(decodes))) else token_ids[mx.array(group)]
            forward = self._decode_pool if self.level is Level.PER_POOL else self._decode_pooled
            logits.append(forward([decodes[i] for i in group], fed))
            groups.append(group)
        computed = [i for group in groups for i in group]
        together = logits[0] if len(logits) == 1 else mx.concatenate(logits)
        if computed == list(range(len(decodes))):
            return together
        return together[mx.array([computed.index(i) for i in range(len(decodes))])]

    def _groups(self, indices: Sequence[int], decodes: Sequence[DecodeRow]) -> list[list[int]]:
        """Decode rows of one forward each, in the order in which it gives their logits."""
        if self.level is not Level.PER_POOL:
            return [list(indices)] if indices else []
        by_pool: dict[int, list[int]] = {}
        for index in sorted(indices, key=lambda i: self._table.slot_of(decodes[i].row)):
            by_pool.setdefault(self._table.slot_of(decodes[index].row).pool, []).append(index)
        return list(by_pool.values())

    def _decode_pooled(self, decodes: Sequence[DecodeRow], token_ids: mx.array) -> mx.array:
        return self._ragged([], decodes, token_ids)

    def _ragged(self, chunks: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array) -> mx.array:
        """Logits of the decode rows in one forward; without any, of all tokens, which nobody evaluates."""
        step = RaggedStep(
            [FedChunk(self._table.slot_of(chunk.row), chunk.start, len(chunk.token_ids)) for chunk in chunks],
            [FedToken(self._table.slot_of(decode.row), decode.start) for decode in decodes],
            self._table.pool_lengths,
        )
        views = [
            RaggedView([pool.layers[index] if pool.layers else None for pool in self._pools.pools], window, step)
            for index, window in enumerate(self._pools.windows)
        ]
        rows = Rows([decodes[index].row for index in step.order])
        states = [StateView(layer.read(rows)) for layer in self._states.layers]
        fed = _fed(step, chunks, token_ids)
        cache = nested(self._layouts, iter(views), iter(states))
        with keys_attended():
            logits = self._selection.logits(
                step.wanted if decodes else None, lambda: self._model(fed[:, None], cache=cache)
            )
        check_attended(views)
        self._store_states(rows, states)
        return logits[:, 0]

    def _decode_pool(self, decodes: Sequence[DecodeRow], token_ids: mx.array) -> mx.array:
        """Rows of one pool, by slot; slots between them run as dummies."""
        slots = [self._table.slot_of(decode.row) for decode in decodes]
        pool = self._pools.pools[slots[0].pool]
        first, span = slots[0].index, slots[-1].index + 1 - slots[0].index
        places = mx.array([slot.index - first for slot in slots])
        positions = [self._next_position(Slot(slots[0].pool, first + place)) for place in range(span)]
        for slot, decode in zip(slots, decodes, strict=True):
            positions[slot.index - first] = decode.start
        step = DecodeStep(first, positions, max(decode.start for decode in decodes), pool.length)
        layers = [DecodeView(*layer, step) for layer in zip(pool.layers, self._pools.windows, strict=True)]
        rows = Rows([decode.row for decode in decodes])
        has_gaps = span != len(decodes)
        states = [StateView(layer.read(self._rows_in(step, slots[0].pool))) for layer in self._states.layers]
        fed = mx.zeros(span, token_ids.dtype).at[places].add(token_ids) if has_gaps else token_ids
        logits = self._model(fed[:, None], cache=nested(self._layouts, iter(layers), iter(states)))[:, 0]
        if has_gaps:
            logits = logits[places]
            for view in states:
                view.cache = [None if state is None else state[places] for state in view.cache]
        self._store_states(rows, states)
        return logits

    def _next_position(self, slot: Slot) -> int:
        row = self._table.row_in(slot)
        return 0 if row is None else self._table.tokens_of(row)

    def _rows_in(self, step: DecodeStep, pool: int) -> Rows:
        """Whose states the slots of a decode forward run with; it does not matter whose a dummy in a free slot does."""
        rows = [self._table.row_in(Slot(pool, index)) for index in range(step.slots.start, step.slots.stop)]
        return Rows([0 if row is None else row for row in rows])

    def _feed_row(self, row: int, start: int, token_ids: mx.array) -> mx.array:
        """Logits [1, n, vocabulary] of a forward over one row, not evaluated."""
        slot = self._table.slot_of(row)
        pool = self._pools.pools[slot.pool]
        rows = Rows([row])
        layers = [
            PrefillView(layer, window, slot.index, start)
            for layer, window in zip(pool.layers, self._pools.windows, strict=True)
        ]
        states = [StateView(layer.read(rows, at_start=start == 0)) for layer in self._states.layers]
        logits = self._model(token_ids[None], cache=nested(self._layouts, iter(layers), iter(states)))
        # What reads the buffers is done before they are written: in place.
        mx.eval([view.cache for view in states], self._prefixes.checkpoints.new_arrays())
        self._store_states(rows, states)
        return logits

    def _store_states(self, rows: Rows, views: Sequence[StateView]) -> None:
        for layer, view in zip(self._states.layers, views, strict=True):
            layer.store(rows, view.cache)

    def written_arrays(self) -> list[mx.array]:
        """See ModelRunner."""
        return self._pools.arrays() + self._states.arrays() + self._prefixes.checkpoints.new_arrays()

    def check_invariants(self) -> None:
        """Asserts that table and buffers agree."""
        self._table.check_invariants()
        self._pools.check_invariants()
        self._states.check_invariants()
        self._prefixes.check_invariants()
        assert self._table.pool_slots == tuple(pool.slots for pool in self._pools.pools)


def _fed(step: RaggedStep, chunks: Sequence[PrefillChunk], token_ids: mx.array) -> mx.array:
    """[tokens]: the decode rows' in the order of the step, then the chunks'."""
    if step.order != list(range(len(step.order))):
        token_ids = token_ids[mx.array(step.order)]
    if not chunks:
        return token_ids
    prompt = mx.array([token for chunk in chunks for token in chunk.token_ids], token_ids.dtype)
    return mx.concatenate([token_ids, prompt]) if step.order else prompt


def _parts(chunk: PrefillChunk, longest: int) -> Iterator[PrefillChunk]:
    """The chunk in parts of at most `longest` tokens."""
    for start in range(0, len(chunk.token_ids), longest):
        yield PrefillChunk(chunk.row, chunk.start + start, chunk.token_ids[start : start + longest])
