"""Attention of a ragged forward (ragged_step): the queries of each part against the slots that it reads."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine_core.attention_dispatch import ForeignAttention, Keys, array_attention
from engine_core.ragged_step import DecodeRun, PrefillSpan, RaggedStep
from engine_core.slot_buffers import LayerBuffers


class RaggedMask:
    """Stands for the mask of a ragged forward: every token attends to what is before it in its own sequence."""

    def __init__(self, step: RaggedStep, window: int | None) -> None:
        self.step = step
        self.window = window


class RaggedKeys(Keys):
    """The keys and values of one layer, written."""

    def __init__(
        self, pools: Sequence[LayerBuffers | None], window: int | None, step: RaggedStep, values_dtype: mx.Dtype
    ) -> None:
        super().__init__(values_dtype)
        self.is_attended = False
        self._pools = pools
        self._window = window
        self._step = step

    def attend(self, queries: mx.array, mask: Any, scale: float, sinks: mx.array | None) -> mx.array:
        """See Keys. Raises ForeignAttention for queries or a mask that are not of this forward.

        No mask is what mlx-lm has for one token of one sequence: all of it, or all of the window, is attended to.
        """
        if mask is None:
            mask = RaggedMask(self._step, None)
        if not isinstance(mask, RaggedMask) or mask.step is not self._step:
            raise ForeignAttention("attention with a mask that is not of this forward")
        if (queries.shape[0], queries.shape[2]) != (self._step.num_tokens, 1):
            raise ForeignAttention(f"queries {queries.shape} for {self._step.num_tokens} tokens")
        self.is_attended = True
        window = narrower(self._window, mask.window)
        parts = [self._attend_run(run, queries, window, scale, sinks) for run in self._step.runs]
        parts += [self._attend_span(span, queries, window, scale, sinks) for span in self._step.spans]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _attend_run(
        self, run: DecodeRun, queries: mx.array, window: int | None, scale: float, sinks: mx.array | None
    ) -> mx.array:
        layer = self._pools[run.pool]
        assert layer is not None, "a pool with tokens has slots"
        own, read = queries[run.tokens], run.positions(window)
        found = array_attention(
            own[run.sources] if run.has_gaps else own,
            layer.keys[run.slots, :, read],
            layer.values[run.slots, :, read],
            scale=scale,
            mask=run.mask(window, queries.shape[1]),
            sinks=sinks,
        )
        return found[run.places] if run.has_gaps else found

    def _attend_span(
        self, span: PrefillSpan, queries: mx.array, window: int | None, scale: float, sinks: mx.array | None
    ) -> mx.array:
        layer = self._pools[span.slot.pool]
        assert layer is not None, "a pool with tokens has slots"
        slot, read = slice(span.slot.index, span.slot.index + 1), span.positions(window)
        found = array_attention(
            queries[span.tokens].transpose(2, 1, 0, 3),
            layer.keys[slot, :, read],
            layer.values[slot, :, read],
            scale=scale,
            mask=span.mask(window),
            sinks=sinks,
        )
        return found.transpose(2, 1, 0, 3)


def narrower(window: int | None, other: int | None) -> int | None:
    """The smaller of two windows; None is no window."""
    return min((w for w in (window, other) if w is not None), default=None)
