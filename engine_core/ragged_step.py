"""The plan of one ragged forward: which tokens are fed, where they are written, and what each attends to.

Every token is a batch row of its own, [tokens, 1]. First come those of the decode rows, by pool and slot, then those of
the prefill chunks. Attention is done in parts. A run of decode rows, whose slots lie close together in one pool, reads
the slice of the pool from its first slot to its last, as far as its longest row goes: slots between that do not decode
have a part in it, which nobody reads, and cost attention alone. (To gather slots instead was 1.1 to 2.9 times as
slow: keys and values are read, written and read again.) A chunk of prefill reads its own slot.

What the host makes here, it makes once for all layers.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import mlx.core as mx
import msgspec

from engine_core.device import Slot
from engine_core.mlx_lm_adapter import create_attention_mask

READ_STEP = 64
"""Attention reads a multiple of so many positions: shapes, and with them the allocator's buffers, stay the same."""
WIDEST_GAP = 4
"""Slots between two decode rows that are read for nothing; a wider gap begins another run. One more call of attention
costs about as much as to read a few short slots."""


class FedChunk(msgspec.Struct, frozen=True):
    """Tokens of one prefill chunk."""

    slot: Slot
    start: int
    """Position of the first one."""
    tokens: int


class FedToken(msgspec.Struct, frozen=True, order=True):
    """The token of a decode row."""

    slot: Slot
    position: int


class DecodeRun:
    """Decode rows in one pool whose slots lie close together."""

    def __init__(self, first: int, fed: Sequence[FedToken], slot_length: int) -> None:
        """`first` is the place of the first of them among the tokens."""
        self.tokens = slice(first, first + len(fed))
        self.pool = fed[0].slot.pool
        first_slot, last_slot = fed[0].slot.index, fed[-1].slot.index
        self.slots = slice(first_slot, last_slot + 1)
        places = [token.slot.index - first_slot for token in fed]
        self.has_gaps = len(fed) < last_slot - first_slot + 1
        self._lowest = min(token.position for token in fed)
        self._end = min(_rounded_up(max(token.position for token in fed) + 1), slot_length)
        self._positions = [self._lowest] * (last_slot - first_slot + 1)
        source = [0] * len(self._positions)
        for index, (place, token) in enumerate(zip(places, fed, strict=True)):
            self._positions[place] = token.position
            source[place] = index
        self.places = mx.array(places)
        """Of its rows among the slots."""
        self.sources = mx.array(source)
        """Of each slot: the row whose query it gets; it does not matter which one a slot in a gap gets."""
        self._masks: dict[tuple[int | None, int], mx.array] = {}

    def positions(self, window: int | None) -> slice:
        """What is read of each slot."""
        first = 0 if window is None else max(0, self._lowest - window + 1) // READ_STEP * READ_STEP
        return slice(first, self._end)

    def mask(self, window: int | None, heads: int) -> mx.array:
        """True where a slot's row attends: its own tokens, the last `window` of them if given; no slot to nothing.

        [slots, 1, 1, read]; on a GPU [slots, heads, 1, read], of which Metal's kernel else makes a copy in each layer.
        """
        key = (window, heads)
        if key not in self._masks:
            read = self.positions(window)
            positions = mx.array(self._positions)[:, None, None, None]
            keys = mx.arange(read.start, read.stop)
            mask = keys <= positions
            if window is not None:
                mask = mask & (keys > positions - window)
            if mx.default_device() == mx.Device(mx.gpu):
                mask = mx.contiguous(mx.broadcast_to(mask, (len(self._positions), heads, 1, keys.size)))
            self._masks[key] = mask
        return self._masks[key]


class PrefillSpan:
    """A prefill chunk's place among the tokens."""

    def __init__(self, first: int, chunk: FedChunk) -> None:
        self.tokens = slice(first, first + chunk.tokens)
        self.slot = chunk.slot
        self._start = chunk.start
        self._masks: dict[int | None, mx.array | str | None] = {}

    def positions(self, window: int | None) -> slice:
        """What is read of its slot: all that one of its tokens attends to."""
        first = 0 if window is None else max(0, self._start - window + 1)
        return slice(first, self._start + self._count)

    def mask(self, window: int | None) -> mx.array | str | None:
        """As mlx-lm makes it for one sequence."""
        if window not in self._masks:
            before = self._start - self.positions(window).start
            narrow = window if window is not None and before + self._count > window else None
            self._masks[window] = create_attention_mask(self._count, before, return_array=False, window_size=narrow)
        return self._masks[window]

    @property
    def _count(self) -> int:
        return self.tokens.stop - self.tokens.start


class PoolWrites:
    """Where the tokens of one pool are written."""

    def __init__(self, pool: int, places: Sequence[tuple[int, int, int]], of_all: bool) -> None:
        """`places` are (token, slot, position)."""
        tokens, slots, positions = zip(*places, strict=True)
        self.pool = pool
        self.tokens = None if of_all else mx.array(tokens)
        """Which ones; None for all."""
        self.slots = mx.array(slots)
        self.positions = mx.array(positions)


class RaggedStep:
    """See the module."""

    def __init__(self, chunks: Sequence[FedChunk], decodes: Sequence[FedToken], pool_lengths: Sequence[int]) -> None:
        self.order = sorted(range(len(decodes)), key=decodes.__getitem__)
        """Of the decode rows: as they are fed."""
        fed = [decodes[index] for index in self.order]
        self.runs = list(_runs(fed, pool_lengths))
        self.spans: list[PrefillSpan] = []
        places = [(token.slot, token.position) for token in fed]
        for chunk in chunks:
            self.spans.append(PrefillSpan(len(places), chunk))
            places += [(chunk.slot, position) for position in range(chunk.start, chunk.start + chunk.tokens)]
        self.positions = mx.array([position for _, position in places])
        """[tokens]"""
        self.num_tokens = len(places)
        self.num_decodes = len(fed)
        self.writes = _writes(places)

    @cached_property
    def wanted(self) -> mx.array | None:
        """The tokens whose logits are wanted, in the order of the decode rows; None for all, as they come."""
        if not self.spans and self.order == list(range(self.num_decodes)):
            return None
        inverse = [0] * self.num_decodes
        for place, index in enumerate(self.order):
            inverse[index] = place
        return mx.array(inverse)


def _runs(fed: Sequence[FedToken], pool_lengths: Sequence[int]) -> Iterator[DecodeRun]:
    first = 0
    for end in range(1, len(fed) + 1):
        if end == len(fed) or not _near(fed[end - 1].slot, fed[end].slot):
            yield DecodeRun(first, fed[first:end], pool_lengths[fed[first].slot.pool])
            first = end


def _near(slot: Slot, following: Slot) -> bool:
    return slot.pool == following.pool and following.index - slot.index - 1 <= WIDEST_GAP


def _writes(places: Sequence[tuple[Slot, int]]) -> list[PoolWrites]:
    by_pool: dict[int, list[tuple[int, int, int]]] = {}
    for token, (slot, position) in enumerate(places):
        by_pool.setdefault(slot.pool, []).append((token, slot.index, position))
    return [PoolWrites(pool, of_pool, len(by_pool) == 1) for pool, of_pool in by_pool.items()]


def _rounded_up(positions: int) -> int:
    return -(-positions // READ_STEP) * READ_STEP
