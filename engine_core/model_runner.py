"""What the MLX device asks of a model runner: batched slots (slot_runner) or one row at a time (row_runner)."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from engine_core.device import BlockData, BlockId, BlockPart, DecodeRow, PrefillChunk, StepPlan


class PlanError(RuntimeError):
    """A plan that does not fit the device's state. MLX checks no index, so running it would corrupt memory."""


class LanguageModel(Protocol):
    """A model of mlx-lm."""

    def __call__(self, inputs: mx.array, *, cache: Sequence[Any]) -> mx.array:
        """Logits [rows, n, vocabulary] for token ids [rows, n]; `cache` has an entry per layer and is written."""
        ...


class ModelRunner(Protocol):
    """Owns the KV cache: the tokens computed so far, row by row, and stored blocks."""

    stores_blocks: bool
    """Whether it stores blocks, and copies rows that have no states: if not, no plan asks for either."""
    has_states: bool
    """Whether the model has recurrent states: rows with stored blocks start at checkpoints then, and are not copied."""
    block_parts: Sequence[BlockPart]
    """See Device."""

    def prepare(self, plan: StepPlan) -> None:
        """All that comes before the forward: from drops to restores. Raises PlanError when it does not fit."""
        ...

    def forward(
        self, prefills: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array
    ) -> mx.array | None:
        """Feeds chunks, and one token to each decode row: `token_ids`, [len(decodes)], and not what `decodes` says.

        Returns the decode rows' logits, [len(decodes), vocabulary], not evaluated; None without any. Raises PlanError
        when a row is not ready for its tokens.
        """
        ...

    def score(self, chunk: PrefillChunk) -> mx.array:
        """Feeds one chunk in a forward of its own; logits of all its tokens, [n, vocabulary], not evaluated.

        It comes before the step's `forward`. Raises PlanError when the row is not ready for its tokens.
        """
        ...

    def read_block(self, block_id: BlockId) -> BlockData:
        """See Device. Raises PlanError for one that is not stored."""
        ...

    def written_arrays(self) -> list[mx.array]:
        """What the last `prepare` and `forward` wrote; to be evaluated with what hangs on the logits, and not kept."""
        ...

    def check_invariants(self) -> None:
        """Asserts what must always hold."""
        ...
