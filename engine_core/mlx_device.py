"""The MLX device: a loaded model, its KV cache and its sampler, run step by step from one thread."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import msgspec

from engine_core.config import EngineCoreConfig
from engine_core.device import (
    BlockData,
    BlockId,
    DecodeRow,
    ModelRefused,
    OnProgress,
    OpenedModel,
    StepPlan,
    StepResult,
)
from engine_core.device_memory import device_memory_bytes, kv_budget_bytes, limit_allocator_cache
from engine_core.forward_memory import forward_bytes
from engine_core.grammar_masks import GrammarMasks
from engine_core.grammar_rows import GrammarRow, GrammarRows, accept_sampled
from engine_core.mlx_lm_adapter import load_weights, trace_model, weight_bytes
from engine_core.model_card import read_model_card
from engine_core.model_folder import check_model_folder
from engine_core.model_runner import ModelRunner, PlanError
from engine_core.pool_lengths import pool_lengths
from engine_core.prompt_scores import score_chunk
from engine_core.runner_choice import checkpoint_size, choose_runner, kv_capacity
from engine_core.sampler import Sampled, Sampler
from engine_core.token_feedback import TokenFeedback
from protocol.card import ModelCard
from protocol.logprobs import TokenLogprobs
from protocol.prefix_hash import BLOCK_TOKENS

logger = logging.getLogger("shoal.engine_core.model")

MAX_IN_FLIGHT = 2
"""Plans submitted and not collected."""


def submit_blocks() -> bool:
    """MLX's CPU back end lets the host wait while more than 10 operations are queued: 82 to 92 of a 100 ms step pass in
    `submit` (135M model, 8 rows, 2 cores). What is left, the output head above all, hides the host's part of a step.
    """
    return bool(mx.default_device() == mx.Device(mx.cpu))


class _Step:
    """A plan that is not collected."""

    def __init__(
        self,
        done: mx.array,
        sampled: Sampled | None,
        submitted_s: float,
        scores: dict[int, Sequence[TokenLogprobs]],
        grammar_rows: dict[int, GrammarRow],
    ) -> None:
        self.done = done
        """Evaluated when all is that the step writes."""
        self.sampled = sampled
        self.submitted_s = submitted_s
        self.scores = scores
        """Of prompt tokens, by row."""
        self.started_s = time.monotonic()
        """When all of it was in the device's queue."""
        self._grammar_rows = grammar_rows
        self._token_ids: list[int] | None = None
        self.grammar_ends: dict[int, str | None] = {}
        """As in StepResult, once `token_ids` was asked for."""

    def token_ids(self) -> list[int]:
        """What was sampled; waits for the device, and tells the rows' grammars, the first time."""
        if self._token_ids is None:
            self._token_ids = [] if self.sampled is None else self.sampled.token_ids()
            self.grammar_ends = accept_sampled(self._grammar_rows, self._token_ids)
        return self._token_ids


class MlxDevice:
    """A Device (engine_core.device) on MLX."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        vocab_size: int,
        kv_capacity_tokens: int,
        lengths: Sequence[int],
        checkpoint_tokens: int,
    ) -> None:
        """`checkpoint_tokens` as in Device, for a runner that has states."""
        self.pool_lengths = lengths
        self.kv_capacity_tokens = kv_capacity_tokens
        self.prefix_block_tokens = BLOCK_TOKENS if runner.stores_blocks else 0
        self.checkpoint_tokens = checkpoint_tokens if runner.has_states else 0
        self.block_parts = runner.block_parts
        self.lookahead = True
        self.submit_blocks = submit_blocks()
        self._runner = runner
        self._sampler = sampler
        self._grammars = GrammarRows(vocab_size)
        self._feedback = TokenFeedback()
        self._vocab_size = vocab_size
        self._in_flight: deque[_Step] = deque()
        self._idle_since_s = 0.0
        """The end of the step that was collected last."""

    def submit(self, plan: StepPlan) -> None:
        """See Device. Raises PlanError before anything runs that would corrupt memory."""
        if len(self._in_flight) == MAX_IN_FLIGHT:
            raise PlanError(f"{MAX_IN_FLIGHT} plans are not collected")
        submitted_s = time.monotonic()
        self._check_token_ids(plan)
        fed = self._feedback.fed(plan.decodes)
        self._runner.prepare(plan)
        for row in plan.releases:
            self._sampler.release(row)
            self._grammars.release(row)
        for admission in plan.admissions:
            self._sampler.admit(admission)
            self._grammars.admit(admission.row, admission.grammar, admission.output)
        scores: dict[int, Sequence[TokenLogprobs]] = {
            chunk.row: score_chunk(self._runner, chunk) for chunk in plan.prefills if chunk.targets
        }
        prefills = [chunk for chunk in plan.prefills if not chunk.targets] if scores else plan.prefills
        logits = self._runner.forward(prefills, plan.decodes, fed)
        grammar_rows = self._grammars.places(plan.decodes)
        sampled = None
        if logits is not None:
            sampled = self._sampler.sample(logits, plan.decodes, self._masks(grammar_rows, logits))
        self._feedback.sampled(plan.decodes, None if sampled is None else sampled.tokens)
        self._in_flight.append(_Step(self._start(sampled), sampled, submitted_s, scores, grammar_rows))

    def _masks(self, rows: dict[int, GrammarRow], logits: mx.array) -> GrammarMasks | None:
        """What rows with a grammar may sample: found while the device computes the logits, once the tokens before them
        are known."""
        if not rows:
            return None
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        for step in self._in_flight:
            step.token_ids()
        return GrammarMasks(list(rows), self._grammars.allowed(list(rows.values())))

    def _start(self, sampled: Sampled | None) -> mx.array:
        """Starts all that the step computes; returns what is evaluated when all of it is.

        The buffers themselves are not kept to wait for: the next step would find them in use, and copy them.
        """
        results = [] if sampled is None else sampled.arrays()
        written = [*results, *self._runner.written_arrays(), *self._sampler.changed_arrays()]
        done: mx.array = mx.depends([mx.zeros(1)], written)[0] if written else mx.zeros(1)
        mx.async_eval(done, results, self._sampler.changed_arrays())  # type: ignore[no-untyped-call]
        return done

    def collect(self) -> StepResult:
        """See Device."""
        step = self._in_flight.popleft()
        mx.eval(step.done)
        is_late = self.submit_blocks and self._in_flight  # it had ended before the step after it was started
        ended_s = step.started_s if is_late else time.monotonic()
        elapsed_s = ended_s - max(step.submitted_s, self._idle_since_s)
        self._idle_since_s = ended_s
        if step.sampled is None:
            return StepResult([], elapsed_s, prompt_logprobs=step.scores)
        return StepResult(step.token_ids(), elapsed_s, step.sampled.logprobs(), step.scores, step.grammar_ends)

    def read_block(self, block_id: BlockId) -> BlockData:
        """See Device."""
        return self._runner.read_block(block_id)

    def _check_token_ids(self, plan: StepPlan) -> None:
        """MLX reads outside of the embedding for an id that is not in it."""
        for admission in plan.admissions:
            self._check_ids(admission.row, admission.prompt)
            self._check_ids(admission.row, admission.output)
        for chunk in plan.prefills:
            self._check_ids(chunk.row, chunk.token_ids)
            self._check_ids(chunk.row, chunk.targets)
        for decode in plan.decodes:
            self._check_ids(decode.row, _known(decode))

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
        assert len(self._in_flight) <= MAX_IN_FLIGHT


def _known(decode: DecodeRow) -> tuple[int, ...]:
    return () if decode.token_id is None else (decode.token_id,)


def open_mlx_device(config: EngineCoreConfig, on_progress: OnProgress) -> OpenedModel:
    """Loads `config.model` on the calling thread, which is the one that must run it.

    `on_progress` gets the share loaded, 0 to 1, and what is being loaded. Raises ModelRefused.
    """
    folder = Path(config.model).expanduser().resolve()
    check_model_folder(folder)
    memory_bytes = int(device_memory_bytes() * config.memory_share)
    limit_allocator_cache(memory_bytes)
    model = load_weights(folder, on_progress)
    trace = trace_model(model)
    step_bytes = forward_bytes(model, trace.vocab_size, config.max_num_batched_tokens, config.max_num_seqs)
    budget = kv_budget_bytes(config.kv_cache_memory_bytes, memory_bytes, weight_bytes(model), step_bytes)
    capacity = kv_capacity(model, trace, budget, config.max_num_seqs)
    name = config.served_model_name or folder.name
    card = _fitted(
        read_model_card(folder, name, trace.vocab_size, config.max_model_len), capacity, config.max_model_len
    )
    lengths = pool_lengths(card.max_model_len)
    runner = choose_runner(model, trace, lengths, config.max_num_seqs, config.max_num_batched_tokens)
    logger.info("model %s: %d tokens of KV cache, max_model_len %d", card.name, capacity, card.max_model_len)
    if not card.eos_token_ids:
        logger.warning("model %s names no end-of-sequence token: requests end by stop tokens or length", card.name)
    may_wait = submit_blocks() or config.async_scheduling is False
    sampler = Sampler(trace.vocab_size, card.eos_token_ids, may_wait=may_wait)
    device = MlxDevice(runner, sampler, trace.vocab_size, capacity, lengths, checkpoint_size(trace))
    return OpenedModel(device, card)


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
