"""A slot runner of a tiny model, at any level, and sequences that are fed to it token by known token."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from tiny_models import logits_alone

from engine_core.device import Admission, DecodeRow, PrefillChunk, RowMove, Slot, StepPlan
from engine_core.mlx_lm_adapter import trace_model
from engine_core.output_head import selection_of
from engine_core.slot_runner import Level, SlotRunner
from protocol.sampling import SamplingParams

LENGTHS = (32, 64, 640)

LEVELS_OF_MODELS = [
    *[(name, level) for name in ("llama", "qwen2", "qwen3", "gemma3_text") for level in Level],
    ("mamba", Level.POOLED_DECODE),
    ("mamba", Level.PER_POOL),
]
"""What the tiny models allow."""


def slot_runner(
    model: Any, level: Level = Level.FUSED, max_rows: int = 64, max_forward_tokens: int = 512
) -> SlotRunner:
    layouts = trace_model(model).layouts
    assert layouts is not None
    return SlotRunner(model, layouts, LENGTHS, max_rows, level, selection_of(model), max_forward_tokens)


def admission(row: int, slot: Slot) -> Admission:
    return Admission(row, slot, (), (), SamplingParams(max_tokens=1))


class World:
    """A runner, and how many slots its pools have."""

    def __init__(self, model: Any, level: Level = Level.FUSED, max_forward_tokens: int = 512) -> None:
        self.model = model
        self.runner = slot_runner(model, level, max_forward_tokens=max_forward_tokens)
        self.pool_slots: Sequence[int] = (0,) * len(LENGTHS)

    def prepare(self, pool_slots: Sequence[int] | None = None, **orders: Any) -> None:
        self.pool_slots = self.pool_slots if pool_slots is None else pool_slots
        self.runner.prepare(StepPlan(pool_slots=self.pool_slots, **orders))
        self.runner.check_invariants()

    def admit(self, *places: tuple[int, Slot]) -> None:
        """Rows in slots; pools grow as they must."""
        tops = [
            max([slots, *(slot.index + 1 for _, slot in places if slot.pool == pool)])
            for pool, slots in enumerate(self.pool_slots)
        ]
        self.prepare(tops, admissions=[admission(row, slot) for row, slot in places])

    def move(self, row: int, slot: Slot) -> None:
        self.prepare(moves=[RowMove(row, slot)])

    def forward(self, chunks: Sequence[PrefillChunk], decodes: Sequence[DecodeRow]) -> np.ndarray:
        """Logits of the decode rows, evaluated."""
        fed = mx.array([decode.token_id or 0 for decode in decodes], mx.uint32)
        logits = self.runner.forward(chunks, decodes, fed)
        mx.eval(self.runner.written_arrays(), [] if logits is None else logits)
        self.runner.check_invariants()
        return np.zeros((0, 0)) if logits is None else np.array(logits)

    def feed(self, row: int, token_ids: Sequence[int], start: int = 0) -> np.ndarray:
        """Logits after the last of these tokens; the others are a chunk of the same step."""
        chunks = [PrefillChunk(row, start, token_ids[:-1])] if len(token_ids) > 1 else []
        logits = self.forward(chunks, [DecodeRow(row, start + len(token_ids) - 1, token_ids[-1], 0)])
        return np.array(logits[0])


def last_logits(model: Any, token_ids: Sequence[int]) -> np.ndarray:
    """After all of them, of one plain forward."""
    return np.array(logits_alone(model, token_ids)[-1])
