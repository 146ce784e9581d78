"""What rows with a grammar may sample, applied to the logits of a batch."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine_core.row_selection import put_rows, take_rows


class GrammarMasks:
    """The masks of one step."""

    def __init__(self, places: Sequence[int], allowed: npt.NDArray[np.bool_]) -> None:
        """`places` in the batch, ascending; `allowed` is [places, vocabulary]."""
        self._places = mx.array(list(places))
        self._allowed = mx.array(allowed)

    def apply(self, logits: mx.array, raw: mx.array) -> mx.array:
        """The logits [batch, vocabulary], with what a grammar does not allow at minus infinity.

        Where minimum tokens, allowed tokens or bad words leave nothing of what the grammar allows, the grammar wins:
        such a row gets its `raw` logits, those of the model.
        """
        own = mx.where(self._allowed, take_rows(logits, self._places), -mx.inf)
        if raw is not logits:
            untouched = mx.where(self._allowed, take_rows(raw, self._places).astype(own.dtype), -mx.inf)
            own = mx.where(mx.max(own, axis=-1, keepdims=True) == -mx.inf, untouched, own)
        return put_rows(logits, self._places, own)
