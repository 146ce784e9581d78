"""What the busy loop asks of a device: MLX (engine_core.mlx_device) or simulated (engine_core.sim_device).

A running sequence has a row: a number below max_num_seqs that stays its own until it is released, and names it in all
orders. Its KV is in a slot: a place in one of the pools, each of which has slots of one length. When it outgrows its
slot it moves to one of a longer pool; only the move copies.

All tokens of a sequence but the last known one are prefilled in chunks; that last one is fed as a decode row, and so
is every token sampled after it: sampling happens in one place, on the logits of decode rows.

Steps are submitted and collected in the same order. With lookahead a step is submitted before the one before it was
collected: its decode rows feed tokens that the host has not seen yet, which the device keeps.
"""

import math
from collections.abc import Callable, Sequence
from typing import NewType, Protocol

import msgspec

from engine_core.grammar import Grammar
from protocol.card import ModelCard
from protocol.logprobs import TokenLogprobs
from protocol.sampling import SamplingParams

OnProgress = Callable[[float, str], None]
"""Called while a model loads: share loaded (0 to 1) and what is being done."""


BlockId = NewType("BlockId", int)
"""Names a stored block of KV; never given twice."""


class Slot(msgspec.Struct, frozen=True, order=True):
    """Where the KV of a row is."""

    pool: int
    """Index in `Device.pool_lengths`."""
    index: int
    """Below the number of slots that the pool has in this step."""


class BlockPart(msgspec.Struct, frozen=True):
    """One of the arrays that a stored block consists of, the same for all blocks of a model."""

    dtype: str
    """As safetensors calls it: F32, F16, BF16."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the array."""
        return math.prod(self.shape) * BYTES_PER_VALUE[self.dtype]


BYTES_PER_VALUE = {"F32": 4, "F16": 2, "BF16": 2}

BlockData = Sequence[memoryview]
"""The raw bytes of a block's arrays, in the order and shapes of `Device.block_parts`."""


class BlockLoad(msgspec.Struct, frozen=True):
    """What was kept outside of the device becomes a stored block."""

    block_id: BlockId
    data: BlockData


class BlockSave(msgspec.Struct, frozen=True):
    """Copy one block out of a row."""

    block_id: BlockId
    row: int
    start: int
    """Position of its first token; the whole block is in the row."""


class CheckpointSave(msgspec.Struct, frozen=True):
    """Copy a row's recurrent states: they are as they are behind the last token of a block."""

    block_id: BlockId
    """Whose KV is stored by this plan or an earlier one, or will be before it is restored."""
    row: int
    tokens: int
    """So many the row holds, neither more nor less."""


class RowMove(msgspec.Struct, frozen=True):
    """What a row holds goes to another slot, which no row has after the releases of this step."""

    row: int
    slot: Slot


class RowGrammar(msgspec.Struct, frozen=True):
    """What the output of a row has to look like."""

    grammar: Grammar
    starts_after: tuple[int, ...] = ()
    """As in protocol.grammar.GrammarSpec."""


class Admission(msgspec.Struct, frozen=True):
    """A sequence takes a row and a slot, with nothing cached there."""

    row: int
    slot: Slot
    prompt: Sequence[int]
    output: Sequence[int]
    """Tokens generated already (after a preemption): penalties, minimum tokens and the grammar count them."""
    sampling: SamplingParams
    grammar: RowGrammar | None = None


class RowCopy(msgspec.Struct, frozen=True):
    """Copy the KV of the first tokens of another row to the start of a row that has just been admitted."""

    source: int
    """A row that holds at least so many tokens before this step, and is not released by it."""
    row: int
    tokens: int


class BlockRestore(msgspec.Struct, frozen=True):
    """Copy blocks, one after the other, to the start of a row that has just been admitted."""

    row: int
    block_ids: Sequence[BlockId]
    tokens: int
    """Of the last block only so many are wanted that these are restored in all; more than all other blocks have.

    Of a device with checkpoints all are, and the row's states are those of the checkpoint of the last block."""


class PrefillChunk(msgspec.Struct, frozen=True):
    """Compute the KV of these tokens."""

    row: int
    start: int
    """Position of the first token in its sequence: so many tokens of the row are in the KV cache already."""
    token_ids: Sequence[int]
    targets: Sequence[int] = ()
    """When log probabilities are wanted: the token that follows each of these. Else their logits are not wanted."""
    logprobs: int = 0
    """How many alternatives of each target are wanted."""


class DecodeRow(msgspec.Struct, frozen=True):
    """Feed one token and sample the next. A row's last chunk may be in the same step: it comes first."""

    row: int
    start: int
    """Position of the token fed: so many tokens of the row are in the KV cache before it."""
    token_id: int | None
    """None: the one that the step before this one sampled for this row."""
    output_position: int
    """Output position of the token to be sampled; 0 is the first."""


class StepPlan(msgspec.Struct, frozen=True):
    """One step, in this order: drops, loads, saves, releases, pools that grow, moves, pools that shrink, admissions,
    copies, restores, prefill chunks and decode rows. (Of checkpoints as of blocks.)

    So blocks are saved as the step before left them, also from rows that are released, and room for them is made
    before. The larger of the slots before and after, pool by pool, the blocks and the checkpoints fit in the
    device's capacity together.
    """

    drops: Sequence[BlockId] = ()
    """Blocks to be forgotten."""
    loads: Sequence[BlockLoad] = ()
    saves: Sequence[BlockSave] = ()
    checkpoint_drops: Sequence[BlockId] = ()
    """Blocks whose checkpoint is to be forgotten; it does not go with the block by itself."""
    checkpoint_saves: Sequence[CheckpointSave] = ()
    releases: Sequence[int] = ()
    """Rows that are free again, and their slots with them."""
    pool_slots: Sequence[int] = ()
    """Slots that each pool has from now on, in the order of `Device.pool_lengths`; all 0 when no row is held."""
    moves: Sequence[RowMove] = ()
    """A slot that one of them leaves is free for the ones after it."""
    admissions: Sequence[Admission] = ()
    copies: Sequence[RowCopy] = ()
    restores: Sequence[BlockRestore] = ()
    prefills: Sequence[PrefillChunk] = ()
    """At most one for a row."""
    decodes: Sequence[DecodeRow] = ()
    """At most one for a row."""


class StepResult(msgspec.Struct, frozen=True):
    """What came of a submitted step."""

    token_ids: Sequence[int]
    """Sampled, in the order of `StepPlan.decodes`."""
    elapsed_s: float
    """How long the device took, without the time for which it waited for the plan."""
    logprobs: dict[int, TokenLogprobs] = {}
    """Index in `StepPlan.decodes` to what was asked for: only of rows that did."""
    prompt_logprobs: dict[int, Sequence[TokenLogprobs]] = {}
    """Row to what was asked for of the targets of its prefill chunk: only of chunks that have such."""
    grammar_ends: dict[int, str | None] = {}
    """Index in `StepPlan.decodes` of rows whose grammar allows nothing after this token: None; or that cannot go on
    with their grammar: why, and the token is none of the output."""


class Device(Protocol):
    """All calls come from one thread, the one that made the device."""

    pool_lengths: Sequence[int]
    """Most tokens that a slot of each pool holds, ascending."""
    kv_capacity_tokens: int
    """Most slots x length of all pools that a plan may ask for, with the tokens of all stored blocks."""
    prefix_block_tokens: int
    """Tokens of a block (protocol.prefix_hash.BLOCK_TOKENS); 0 for a device that stores none and copies no rows."""
    checkpoint_tokens: int
    """Tokens of KV that take as much memory as a checkpoint of a row's recurrent states. 0 for a model without such
    states: it needs no checkpoints. With them no rows are copied, and blocks are restored up to a checkpoint."""
    block_parts: Sequence[BlockPart]
    """What a stored block consists of; none where blocks cannot be taken out of the device."""
    lookahead: bool
    """Whether it gains by a second step that is submitted before the first is collected."""
    submit_blocks: bool
    """Whether `submit` takes nearly as long as the step: then a step that is submitted before the one before it is
    collected delays what that one brings by its own time."""

    def submit(self, plan: StepPlan) -> None:
        """Starts the plan, or queues it behind the one that runs; at most two are not collected.

        Raises whatever the device raises; its state cannot be trusted after that and the process must end.
        """
        ...

    def collect(self) -> StepResult:
        """Waits for the end of the oldest plan that was submitted and not collected. Raises as `submit` does."""
        ...

    def read_block(self, block_id: BlockId) -> BlockData:
        """A stored block that a collected plan saved and no submitted one dropped.

        The bytes are not copied and stay as they are, also when the block is dropped: whoever keeps them keeps the
        memory. Other threads may read them.
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
    takes_grammars: bool = True
