"""What the busy loop asks of a device: MLX (engine_core.mlx_device) or simulated (engine_core.sim_device).

A sequence lives in a row. All its tokens but the last known one are prefilled in chunks; that last one is fed as a
decode row, and so is every token sampled after it: sampling happens in one place, on the logits of decode rows.
"""

from collections.abc import Callable, Sequence
from typing import NewType, Protocol

import msgspec

from protocol.card import ModelCard
from protocol.sampling import SamplingParams

OnProgress = Callable[[float, str], None]
"""Called while a model loads: share loaded (0 to 1) and what is being done."""


BlockId = NewType("BlockId", int)
"""Names a stored block of KV; never given twice."""


class BlockSave(msgspec.Struct, frozen=True):
    """Copy one block out of a row."""

    block_id: BlockId
    row: int
    start: int
    """Position of its first token; the whole block is in the row."""


class BlockRestore(msgspec.Struct, frozen=True):
    """Copy blocks, one after the other, to the start of a row that has just been admitted."""

    row: int
    block_ids: Sequence[BlockId]


class Admission(msgspec.Struct, frozen=True):
    """A sequence takes a row, with an empty KV cache there."""

    row: int
    prompt: Sequence[int]
    output: Sequence[int]
    """Tokens generated already (after a preemption): penalties and minimum tokens count them."""
    sampling: SamplingParams


class PrefillChunk(msgspec.Struct, frozen=True):
    """Compute the KV of these tokens; their logits are not wanted."""

    row: int
    start: int
    """Position of the first token in its sequence: so many tokens of the row are in the KV cache already."""
    token_ids: Sequence[int]


class DecodeRow(msgspec.Struct, frozen=True):
    """Feed one token and sample the next."""

    row: int
    start: int
    """Position of the token fed: so many tokens of the row are in the KV cache already."""
    token_id: int
    output_position: int
    """Output position of the token to be sampled; 0 is the first."""


class StepPlan(msgspec.Struct, frozen=True):
    """One step, in this order: drops, saves, releases, admissions, KV growth, restores, prefill chunks, decode rows.

    So blocks are saved as the step before left them, also from rows that are released, and room for them is made
    before. kv_rows x kv_length and the blocks fit in the device's capacity together, before and after the growth.
    """

    drops: Sequence[BlockId] = ()
    """Blocks to be forgotten."""
    saves: Sequence[BlockSave] = ()
    releases: Sequence[int] = ()
    """Rows that are free again."""
    admissions: Sequence[Admission] = ()
    kv_rows: int = 0
    """The KV cache must hold rows 0 .. kv_rows-1 ..."""
    kv_length: int = 0
    """... of this many tokens each, during this step."""
    restores: Sequence[BlockRestore] = ()
    prefills: Sequence[PrefillChunk] = ()
    decodes: Sequence[DecodeRow] = ()


class Device(Protocol):
    """All calls come from one thread, the one that made the device."""

    kv_capacity_tokens: int
    """Most kv_rows x kv_length that a plan may ask for, with the tokens of all stored blocks."""
    prefix_block_tokens: int
    """Tokens of a block (protocol.prefix_hash.BLOCK_TOKENS); 0 for a device that stores none."""

    def run(self, plan: StepPlan) -> list[int]:
        """Executes the plan; returns the sampled token ids in the order of `plan.decodes`.

        Raises whatever the device raises; its state cannot be trusted after that and the process must end.
        """
        ...

    def close(self) -> None:
        """Frees what the device holds."""
        ...


class ModelRefused(Exception):
    """The model cannot be served as configured; the message is for the operator. Starting again will not help."""


class OpenedModel(msgspec.Struct, frozen=True):
    """A loaded model: what runs it, and what API servers must know of it."""

    device: Device
    card: ModelCard
