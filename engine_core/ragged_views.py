"""What a model sees of the slots during a ragged forward (ragged_step): mlx-lm's cache protocol, without arrays.

A view takes new keys and values and writes them in place; what it gives back stands for them (attention_dispatch), and
so does its mask. Attention comes back here with them. A model that does anything else with them raises, and one that
writes a layer and does not attend to it is refused after the forward: both are found by the self test when it is
loaded, and served otherwise (slot_runner).
"""

from collections.abc import Iterable, Sequence

import mlx.core as mx

from engine_core.attention_dispatch import ForeignAttention, Keys, Values
from engine_core.mlx_lm_adapter import KVCache
from engine_core.ragged_attention import RaggedKeys, RaggedMask, narrower
from engine_core.ragged_step import RaggedStep
from engine_core.slot_buffers import LayerBuffers


class RaggedView(KVCache):  # type: ignore[misc]  # mlx-lm is untyped; models test isinstance(cache, KVCache)
    """One layer in all pools; one token is fed to each batch row."""

    def __init__(self, pools: Sequence[LayerBuffers | None], window: int | None, step: RaggedStep) -> None:
        """`pools` has the layer's buffers in each pool, None for one without slots."""
        self.keys = None
        self.values = None
        self.offset = step.positions
        self._pools = pools
        self._window = window
        self._step = step
        self._written: RaggedKeys | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Keys, Values]:
        """Writes [tokens, heads, 1, dim], each token at its place. Raises ForeignAttention for another shape."""
        if (keys.shape[0], keys.shape[2]) != (self._step.num_tokens, 1) or self._written is not None:
            raise ForeignAttention(f"keys {keys.shape} for {self._step.num_tokens} tokens of different sequences")
        for writes in self._step.writes:
            layer = self._pools[writes.pool]
            assert layer is not None, "a pool with tokens has slots"
            for buffer, new in ((layer.keys, keys[:, :, 0]), (layer.values, values[:, :, 0])):
                if new.size:  # MLX divides by zero when it writes nothing
                    buffer[writes.slots, :, writes.positions] = new if writes.tokens is None else new[writes.tokens]
        self.offset = self._step.positions + 1
        self._written = RaggedKeys(self._pools, self._window, self._step, values.dtype)
        return self._written, self._written.values

    def keys_and_values(self) -> tuple[Keys, Values]:
        """See KVCache: of what was written before in this forward."""
        if self._written is None:
            raise ForeignAttention("a layer's keys are asked for before they are written")
        return self._written, self._written.values

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> RaggedMask:
        """See KVCache. Raises ForeignAttention for more than one token a batch row."""
        if n != 1:
            raise ForeignAttention(f"a mask for {n} tokens a row")
        return RaggedMask(self._step, narrower(self._window, window_size))

    def check_attended(self) -> None:
        """Raises ForeignAttention when the layer was written but attention did not come by here."""
        if self._written is not None and not self._written.is_attended:
            raise ForeignAttention("a layer's attention is computed by the model itself")


def check_attended(views: Iterable[RaggedView]) -> None:
    """After a forward: see RaggedView.check_attended."""
    for view in views:
        view.check_attended()
