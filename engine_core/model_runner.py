"""What the MLX device asks of a model runner: batched slots (slot_runner) or one row at a time (row_runner)."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from engine_core.device import BlockId, BlockRestore, BlockSave, DecodeRow, PrefillChunk


class PlanError(RuntimeError):
    """A plan that does not fit the device's state. MLX checks no index, so running it would corrupt memory."""


class LanguageModel(Protocol):
    """A model of mlx-lm."""

    def __call__(self, inputs: mx.array, *, cache: Sequence[Any]) -> mx.array:
        """Logits [rows, n, vocabulary] for token ids [rows, n]; `cache` has an entry per layer and is written."""
        ...


class ModelRunner(Protocol):
    """Owns the KV cache: the tokens computed so far, row by row, and stored blocks of 64 tokens."""

    stores_blocks: bool
    """Whether it can: if not, no block is ever given to it."""

    def admit(self, row: int) -> None:
        """The row starts a sequence, with nothing cached. Raises PlanError when the row is taken."""
        ...

    def release(self, row: int) -> None:
        """The row is free again. Raises PlanError when it was not taken."""
        ...

    def reserve(self, rows: int, length: int) -> None:
        """Makes room for rows 0 .. rows-1 of `length` tokens each; frees all memory when no row is taken."""
        ...

    def prefill(self, chunk: PrefillChunk) -> None:
        """Computes and evaluates the KV of a chunk. Raises PlanError when it does not fit the row."""
        ...

    def decode(self, decodes: Sequence[DecodeRow]) -> mx.array:
        """Feeds one token to each of these rows; returns their logits [len(decodes), vocabulary], not evaluated.

        Raises PlanError when a row is not ready for its token.
        """
        ...

    def drop_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """Frees stored blocks. Raises PlanError for one that is not stored."""
        ...

    def save_blocks(self, saves: Sequence[BlockSave]) -> None:
        """Copies blocks out of rows. Raises PlanError for one that is not in its row, or whose id is in use."""
        ...

    def restore_blocks(self, restore: BlockRestore) -> None:
        """Copies blocks to the start of an empty row. Raises PlanError when it is not empty or a block not stored."""
        ...

    def written_arrays(self) -> list[mx.array]:
        """The KV arrays that the last `decode` wrote; to be evaluated together with what hangs on its logits."""
        ...

    def check_invariants(self) -> None:
        """Asserts what must always hold."""
        ...
