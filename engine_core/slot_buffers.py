"""The memory that keys and values are in: pools of slots, and nothing else.

A pool has slots of one length. Each layer has two arrays there, [slots, heads, length + 1, dim]; the one position more
takes the write of a full row that only runs along as a dummy (slot_views). Few large arrays: Metal has a limit of
499,000.

MLX writes into a buffer in place only while nobody else refers to it: a slice that is kept alive turns each write
into a copy of the whole buffer (24 ms and 50 MB instead of 0.05 ms for one of 50 MB), and so does a read of what it
was before, when both are evaluated together. So no slice of a buffer is ever stored, views (slot_views, ragged_views)
live as long as a forward is traced, and what is copied from slot to slot is evaluated at once.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from engine_core.device import Slot
from engine_core.slot_layout import CacheLayout, LayerLayout, flat_layouts

COPIED_AT_ONCE_BYTES = 32 * 1024 * 1024
"""At most so much (or the keys or values of one layer) of a row is there a third time while it is copied; each
evaluation waits for the device."""


def copied(part: mx.array) -> mx.array:
    """The same in memory of its own.

    MLX does without copying where it can: an array that is written with one slice as large as itself is that slice
    then, and so is a stack of one. It would keep the whole buffer that it is a slice of, and make the next write to
    it a copy of all that.
    """
    return (part * 1).astype(part.dtype)


class LayerBuffers:
    """Keys and values of one layer in one pool; views write into them in place."""

    def __init__(self, layout: LayerLayout, slots: int, length: int) -> None:
        self.keys = mx.zeros((slots, layout.heads, length + 1, layout.key_dim), layout.key_dtype)
        self.values = mx.zeros((slots, layout.heads, length + 1, layout.value_dim), layout.value_dtype)

    def resize(self, slots: int) -> None:
        """Keeps the slots that fit; old and new exist together for one array at a time."""
        self.keys = _resized(self.keys, slots)
        mx.eval(self.keys)
        self.values = _resized(self.values, slots)
        mx.eval(self.values)


def _resized(old: mx.array, slots: int) -> mx.array:
    if slots <= old.shape[0]:
        return copied(old[:slots])
    new = mx.zeros((slots, *old.shape[1:]), old.dtype)
    if new.size:
        new[: old.shape[0]] = old
    return new


class Pool:
    """The slots of one length; no memory while there is none."""

    def __init__(self, layouts: Sequence[LayerLayout], length: int) -> None:
        self.length = length
        self.slots = 0
        self.layers: list[LayerBuffers] = []
        """One for each layout, while there are slots."""
        self._layouts = layouts

    def resize(self, slots: int) -> None:
        """So many slots from now on; those that stay keep what they hold."""
        if slots == 0:
            self.layers = []
        elif self.slots == 0:
            self.layers = [LayerBuffers(layout, slots, self.length) for layout in self._layouts]
            mx.eval(self.planes())
        else:
            for layer in self.layers:
                layer.resize(slots)
        self.slots = slots

    def planes(self) -> list[mx.array]:
        """Keys and values of all layers, but for those of no size. Never to be kept: each later write were a copy."""
        return [array for layer in self.layers for array in (layer.keys, layer.values) if array.size]


class SlotPools:
    """Owner of all pools."""

    def __init__(self, layouts: Sequence[CacheLayout], pool_lengths: Sequence[int]) -> None:
        layers = [layout for layout in flat_layouts(layouts) if isinstance(layout, LayerLayout)]
        self.windows = [layout.window for layout in layers]
        self.pools = [Pool(layers, length) for length in pool_lengths]

    def resize(self, pool_slots: Sequence[int]) -> None:
        """So many slots in each pool from now on."""
        changed = [(pool, slots) for pool, slots in zip(self.pools, pool_slots, strict=True) if pool.slots != slots]
        for pool, slots in sorted(changed, key=lambda pair: pair[1] - pair[0].slots):  # who shrinks makes room
            pool.resize(slots)
        if changed:
            mx.clear_cache()  # buffers of the old shape will not be asked for again

    def copy(self, source: Slot, target: Slot, tokens: int) -> None:
        """Copies the first tokens of one slot to the start of another, and evaluates it."""
        if source.pool == target.pool:
            self._copy_within(self.pools[source.pool], source.index, target.index, tokens)
            return
        written: list[mx.array] = []
        planes = zip(self.pools[source.pool].planes(), self.pools[target.pool].planes(), strict=True)
        for read, buffer in planes:
            buffer[target.index, :, :tokens] = read[source.index, :, :tokens]
            written.append(buffer)
        mx.eval(written)

    @staticmethod
    def _copy_within(pool: Pool, source: int, target: int, tokens: int) -> None:
        """By way of memory of its own: what is read must be done before the same buffer is written."""
        for planes in _batches(pool.planes(), tokens):
            parts = [copied(plane[source, :, :tokens]) for plane in planes]
            mx.eval(parts)
            for plane, part in zip(planes, parts, strict=True):
                plane[target, :, :tokens] = part
            mx.eval(planes)

    def arrays(self) -> list[mx.array]:
        """All buffers, for evaluation at once. Never to be kept."""
        return [plane for pool in self.pools for plane in pool.planes()]

    def check_invariants(self) -> None:
        """Asserts that all buffers have the stated shape."""
        for pool in self.pools:
            assert len(pool.layers) == (len(self.windows) if pool.slots else 0)
            for layer in pool.layers:
                for array in (layer.keys, layer.values):
                    assert (array.shape[0], array.shape[2]) == (pool.slots, pool.length + 1)


def _batches(planes: Sequence[mx.array], tokens: int) -> Iterator[list[mx.array]]:
    """Planes in batches of at most COPIED_AT_ONCE_BYTES of a row, or of one plane."""
    batch, batch_bytes = list[mx.array](), 0
    for plane in planes:
        row_bytes = plane.shape[1] * tokens * plane.shape[3] * plane.itemsize
        if batch and batch_bytes + row_bytes > COPIED_AT_ONCE_BYTES:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(plane)
        batch_bytes += row_bytes
    if batch:
        yield batch
