"""Which model runner a loaded model gets: the best level of slots that computes what mlx-lm computes."""

import logging
from collections.abc import Sequence

from engine_core.device_memory import capacity_tokens, checkpoint_tokens
from engine_core.mlx_lm_adapter import ModelTrace, unfit_for_slots
from engine_core.model_runner import LanguageModel, ModelRunner
from engine_core.output_head import selection_of
from engine_core.row_runner import RowRunner
from engine_core.self_test import TEST_ROWS, find_fault, pool_lengths_to_test, window_to_fill
from engine_core.slot_layout import CacheLayout, StateLayout, flat_layouts
from engine_core.slot_runner import Level, SlotRunner

logger = logging.getLogger("shoal.engine_core.model")

SPARE_TOKENS = 1
"""Each slot has room for one token more than its length (slot_buffers)."""


def kv_capacity(model: LanguageModel, trace: ModelTrace, budget_bytes: int, max_rows: int) -> int:
    """Tokens of KV cache. Raises ModelRefused when the budget is too small."""
    spare = SPARE_TOKENS if unfit(model, trace) is None else 0
    return capacity_tokens(trace.cost, budget_bytes, max_rows, spare)


def checkpoint_size(trace: ModelTrace) -> int:
    """Tokens of KV cache that a checkpoint of a model in slots takes."""
    return checkpoint_tokens(trace.cost, SPARE_TOKENS)


def unfit(model: LanguageModel, trace: ModelTrace) -> str | None:
    """Why slots must not be tried; None when the self test is to tell."""
    if trace.layouts is None:
        return f"slots cannot hold its caches ({', '.join(trace.cache_kinds)})"
    return unfit_for_slots(model)


def levels(layouts: Sequence[CacheLayout]) -> list[Level]:
    """Those that are worth a test, the best first: recurrent layers need the tokens of a chunk in a row."""
    has_states = any(isinstance(layout, StateLayout) for layout in flat_layouts(layouts))
    return [level for level in Level if not (has_states and level is Level.FUSED)]


def choose_runner(
    model: LanguageModel, trace: ModelTrace, lengths: Sequence[int], max_rows: int, max_forward_tokens: int
) -> ModelRunner:
    """Slots at the best level at which the model passes the self test, else one row at a time.

    Logs the choice and its reason. To be called once for a model (output_head.selection_of).
    """
    reason = unfit(model, trace)
    if reason is None and trace.layouts is not None:
        selection, filling = selection_of(model), window_to_fill(trace.layouts)
        for level in levels(trace.layouts):
            tested = SlotRunner(
                model, trace.layouts, pool_lengths_to_test(filling), TEST_ROWS, level, selection, max_forward_tokens
            )
            reason = find_fault(model, tested, trace.vocab_size, trace.logits_dtype, filling)
            if reason is None:
                _log_level(level, trace.cache_kinds)
                return SlotRunner(model, trace.layouts, lengths, max_rows, level, selection, max_forward_tokens)
            logger.info("not with %s: %s", level.value, reason)
    logger.warning("the model runs one row at a time, which is slow for many requests: %s", reason)
    return RowRunner(model)


def _log_level(level: Level, cache_kinds: Sequence[str]) -> None:
    kinds = ", ".join(cache_kinds)
    logger.info("the model runs in batched slots, %s, and the self test agrees (%s)", level.value, kinds)
