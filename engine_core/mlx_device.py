"""The MLX device: a loaded model, its KV cache and its sampler, run step by step from one thread."""

import logging
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import msgspec

from engine_core.config import EngineCoreConfig
from engine_core.device import ModelRefused, OnProgress, OpenedModel, StepPlan
from engine_core.device_memory import (
    CacheCost,
    capacity_tokens,
    device_memory_bytes,
    kv_budget_bytes,
    limit_allocator_cache,
)
from engine_core.mlx_lm_adapter import ModelTrace, load_weights, trace_model, unfit_for_slots, weight_bytes
from engine_core.model_card import read_model_card
from engine_core.model_folder import check_model_folder
from engine_core.model_runner import LanguageModel, ModelRunner, PlanError
from engine_core.row_runner import RowRunner
from engine_core.sampler import Sampler
from engine_core.self_test import find_fault, window_to_fill
from engine_core.slot_runner import SlotRunner
from protocol.card import ModelCard
from protocol.prefix_hash import BLOCK_TOKENS

logger = logging.getLogger("shoal.engine_core.model")


class MlxDevice:
    """A Device (engine_core.device) on MLX."""

    def __init__(self, runner: ModelRunner, sampler: Sampler, vocab_size: int, kv_capacity_tokens: int) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.prefix_block_tokens = BLOCK_TOKENS if runner.stores_blocks else 0
        self._runner = runner
        self._sampler = sampler
        self._vocab_size = vocab_size

    def run(self, plan: StepPlan) -> list[int]:
        """See Device. Raises PlanError before anything runs that would corrupt memory."""
        self._check_token_ids(plan)
        self._runner.drop_blocks(plan.drops)
        self._runner.save_blocks(plan.saves)
        for row in plan.releases:
            self._runner.release(row)
            self._sampler.release(row)
        for admission in plan.admissions:
            self._runner.admit(admission.row)
            self._sampler.admit(admission)
        self._runner.reserve(plan.kv_rows, plan.kv_length)
        for restore in plan.restores:
            self._runner.restore_blocks(restore)
        for chunk in plan.prefills:
            self._runner.prefill(chunk)
        if not plan.decodes:
            return []
        logits = self._runner.decode(plan.decodes)
        tokens = self._sampler.sample(logits, plan.decodes)
        mx.eval(tokens, self._runner.written_arrays(), self._sampler.changed_arrays())
        sampled: list[int] = tokens.tolist()  # type: ignore[assignment]  # one-dimensional
        return sampled

    def _check_token_ids(self, plan: StepPlan) -> None:
        """MLX reads outside of the embedding for an id that is not in it."""
        for admission in plan.admissions:
            self._check_ids(admission.row, admission.prompt)
            self._check_ids(admission.row, admission.output)
        for chunk in plan.prefills:
            self._check_ids(chunk.row, chunk.token_ids)
        for decode in plan.decodes:
            self._check_ids(decode.row, (decode.token_id,))

    def _check_ids(self, row: int, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._vocab_size):
            raise PlanError(f"row {row}: a token id is outside of the vocabulary of {self._vocab_size}")

    def close(self) -> None:
        """Gives freed memory back; what is still in use goes with the object."""
        mx.clear_cache()

    def check_invariants(self) -> None:
        """Asserts what must hold between steps."""
        self._runner.check_invariants()
        self._sampler.check_invariants()


def open_mlx_device(config: EngineCoreConfig, on_progress: OnProgress) -> OpenedModel:
    """Loads `config.model` on the calling thread, which is the one that must run it.

    `on_progress` gets the share loaded, 0 to 1, and what is being loaded. Raises ModelRefused.
    """
    folder = Path(config.model).expanduser().resolve()
    check_model_folder(folder)
    memory_bytes = device_memory_bytes()
    limit_allocator_cache(memory_bytes)
    model = load_weights(folder, on_progress)
    trace = trace_model(model)
    budget = kv_budget_bytes(config.kv_cache_memory_bytes, memory_bytes, weight_bytes(model))
    runner, capacity = choose_runner(model, trace, budget, config.max_num_seqs)
    name = config.served_model_name or folder.name
    card = read_model_card(folder, name, trace.vocab_size, config.max_model_len)
    card = _fitted(card, capacity, config.max_model_len)
    logger.info("model %s: %d tokens of KV cache, max_model_len %d", card.name, capacity, card.max_model_len)
    if not card.eos_token_ids:
        logger.warning("model %s names no end-of-sequence token: requests end by stop tokens or length", card.name)
    sampler = Sampler(trace.vocab_size, card.eos_token_ids)
    return OpenedModel(MlxDevice(runner, sampler, trace.vocab_size, capacity), card)


def choose_runner(model: LanguageModel, trace: ModelTrace, budget_bytes: int, max_rows: int) -> tuple[ModelRunner, int]:
    """The slot runner where the model allows it and passes the self test, else the row runner; and the KV capacity.

    Logs the choice and its reason.
    """
    reason = unfit_for_slots(model)
    if trace.layouts is None:
        reason = f"slots cannot hold its caches ({', '.join(trace.cache_kinds)})"
    elif reason is None:
        capacity = capacity_tokens(_slot_cost(trace.cost), budget_bytes, max_rows)
        slots = SlotRunner(model, trace.layouts, capacity, max_rows)
        filling = window_to_fill(trace.layouts, capacity)
        reason = find_fault(model, slots, trace.vocab_size, trace.logits_dtype, filling)
        if reason is None:
            logger.info("the model runs in batched slots, and the self test agrees (%s)", ", ".join(trace.cache_kinds))
            return slots, capacity
    logger.warning("the model runs one row at a time, which is slow for many requests: %s", reason)
    return RowRunner(model), capacity_tokens(trace.cost, budget_bytes, max_rows)


def _slot_cost(cost: CacheCost) -> CacheCost:
    """Each slot has room for one token more than is asked for (slot_buffers)."""
    return msgspec.structs.replace(cost, bytes_per_row=cost.bytes_per_row + cost.bytes_per_token)


def _fitted(card: ModelCard, capacity: int, configured: int | None) -> ModelCard:
    """The card with max_model_len lowered to what the KV cache holds. Raises ModelRefused where it was asked for."""
    if card.max_model_len <= capacity:
        return card
    if configured is not None:
        raise ModelRefused(
            f"max_model_len {configured} does not fit the KV cache of {capacity} tokens: "
            "lower it, or give more with kv_cache_memory_bytes"
        )
    logger.warning("max_model_len lowered from %d to %d, which the KV cache holds", card.max_model_len, capacity)
    return msgspec.structs.replace(card, max_model_len=capacity)
