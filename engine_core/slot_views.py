"""What a model sees of one slot, or of a range of slots of one pool, during one forward: mlx-lm's cache protocol.

A view lives for one forward. Models ask it for `offset` (the position of the next token fed), `update_and_fetch`
(write new keys and values, get all that are to be attended), `keys_and_values` (the same again, for layers that
share them) and `make_mask`. A recurrent layer reads and assigns the arrays of its state.

All that they get are arrays, so that these views fit more models than ragged ones (ragged_views); but a forward is over
one slot, or over neighbours.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from engine_core.mlx_lm_adapter import ArraysCache, CacheList, KVCache, create_attention_mask
from engine_core.ragged_attention import narrower
from engine_core.ragged_step import READ_STEP
from engine_core.slot_buffers import LayerBuffers
from engine_core.slot_layout import CacheLayout, LayerLayout


class PrefillView(KVCache):  # type: ignore[misc]  # mlx-lm is untyped; models test isinstance(cache, KVCache)
    """One slot; `n` tokens are fed from position `start` on. Keys and masks are those of mlx-lm's cache there."""

    def __init__(self, layer: LayerBuffers, window: int | None, slot: int, start: int) -> None:
        self.keys = layer.keys
        self.values = layer.values
        self.offset = start
        self._slot = slice(slot, slot + 1)
        self._window = window
        self._first = 0 if window is None else max(0, start - window + 1)
        """Earliest position that one of the tokens fed attends to."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [1, heads, n, dim] in place; returns what is attended to, up to the last position written."""
        end = self.offset + keys.shape[2]
        positions = slice(self.offset, end)
        for buffer, new in ((self.keys, keys), (self.values, values)):
            if new.size:  # MLX divides by zero when it writes nothing (minimax_m3_vl has values of no dimension)
                buffer[self._slot, :, positions] = new
        self.offset = end
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """See KVCache."""
        positions = slice(self._first, self.offset)
        return self.keys[self._slot, :, positions], self.values[self._slot, :, positions]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """See KVCache, and RotatingKVCache for a layer with a window."""
        before = self.offset - self._first
        window = narrower(self._window, window_size)
        if window is not None and before + n <= window:
            window = None
        return create_attention_mask(n, before, return_array=return_array, window_size=window)


class DecodeStep:
    """What all layers of one decode forward share: slots `first_slot` and on, each at its own position.

    Slots in the range that do not decode run as dummies: they feed token 0 at their own next free position, which the
    next real token of that slot overwrites, and attend only to their own slot.
    """

    def __init__(self, first_slot: int, positions: list[int], last_position: int, length: int) -> None:
        """`last_position` is the largest one whose result counts; `length` is what a slot holds."""
        end_slot = first_slot + len(positions)
        self.slots = slice(first_slot, end_slot)
        self.slot_indices = mx.arange(first_slot, end_slot)
        self.positions = mx.array(positions)
        self.read_length = min(-(-(last_position + 1) // READ_STEP) * READ_STEP, length)
        self._masks: dict[int | None, mx.array] = {}

    def mask(self, window: int | None) -> mx.array:
        """[slots, 1, 1, read_length], true where a slot attends: its own tokens, the last `window` of them if given.

        Every slot attends to something: a softmax over nothing is NaN, and a dummy, which may lie beyond what is
        read, writes what it computes into its buffer, where not even a mask keeps a NaN from the slot's next owner.
        """
        if window not in self._masks:
            positions = mx.minimum(self.positions, self.read_length - 1)[:, None, None, None]
            keys = mx.arange(self.read_length)
            mask = keys <= positions
            self._masks[window] = mask if window is None else mask & (keys > positions - window)
        return self._masks[window]


class DecodeView(KVCache):  # type: ignore[misc]
    """Several slots of one pool; one token is fed to each."""

    def __init__(self, layer: LayerBuffers, window: int | None, step: DecodeStep) -> None:
        self.keys = layer.keys
        self.values = layer.values
        self.offset = step.positions
        self._window = window
        self._step = step

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes [slots, heads, 1, dim] in place, each at its position; returns the slots' first `read_length`."""
        step = self._step
        for buffer, new in ((self.keys, keys), (self.values, values)):
            if new.size:
                buffer[step.slot_indices, :, step.positions] = new[:, :, 0]
        self.offset = step.positions + 1
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """See KVCache; of all positions up to the longest slot's."""
        step = self._step
        return self.keys[step.slots, :, : step.read_length], self.values[step.slots, :, : step.read_length]

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Always an array: slots have different lengths. Raises ValueError for more than one token a slot."""
        if n != 1:
            raise ValueError(f"a slot that decodes takes 1 token, not {n}")
        return self._step.mask(narrower(self._window, window_size))


class StateView(ArraysCache):  # type: ignore[misc]  # mamba tests isinstance(cache, ArraysCache)
    """State of one or several rows; the model assigns the new one. No masks: every row is fed as many tokens."""

    def __init__(self, states: Sequence[mx.array | None]) -> None:
        super().__init__(len(states))
        self.cache = list(states)


def nested(layouts: Sequence[CacheLayout], layers: Iterator[KVCache], states: Iterator[StateView]) -> list[Any]:
    """The views as the model's prompt cache has them: one entry for each layout, a CacheList where it is nested."""
    return [_nested(layout, layers, states) for layout in layouts]


def _nested(layout: CacheLayout, layers: Iterator[KVCache], states: Iterator[StateView]) -> Any:
    if isinstance(layout, tuple):
        return CacheList(*nested(layout, layers, states))
    return next(layers) if isinstance(layout, LayerLayout) else next(states)
