"""Decides what each step of the device computes, and what its tokens mean for the requests.

Plain data in, plan out: no clock, no socket, no MLX. The order of calls is plan, (device runs the plan), update;
requests may be added and aborted at any time between, also while a plan runs.

A step has a budget of tokens: one for each decoding sequence first, then chunks of prefill (`engine_core.chunk_budget`
says how many beside decodes, `engine_core.step_share` whose), so that a long prompt never stalls running streams.
Who waits gets a row in the order of `engine_core.fair_queue`, when the next step would prefill it; with what is
stored of its prefix there (`engine_core.prefix_cache`). A prefix that several requests bring together is computed once:
the others wait for it.

Sequences hold rows of the KV cache (`engine_core.kv_budget` says what rows cost). When they outgrow it, the youngest
of the lowest priority loses its row and is computed anew later; since a draw depends only on seed and position, and
greedy choice on nothing else, its output goes on as if nothing had happened. The first in order is preempted only
when it is alone and in a high row, and then goes on in row 0: so something always progresses.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Tokens

import msgspec

from engine_core.batch import Batch
from engine_core.chunk_budget import ChunkBudget, FixedChunkBudget, StepShape
from engine_core.device import Admission, DecodeRow, PrefillChunk, StepPlan
from engine_core.fair_queue import PATIENCE
from engine_core.kv_budget import KvBudget
from engine_core.prefix_cache import PrefixCache
from engine_core.sequence import Sequence, Status
from engine_core.step_share import PrefillOrder, StepShare, StepTokens, prefill_order, share_step
from engine_core.waiting_queue import WaitingQueue
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, Load, RequestKey
from protocol.prefix_hash import BlockHash

MAX_WAITING_REQUESTS = 16_384
"""At this many a new request ends with an error; the coordinator's admission stops long before."""

MOST_CANDIDATES = 64
"""So many of those who wait are looked at in a step: who would not be prefilled in it is passed over."""

OutputsByClient = dict[ClientIndex, list[EngineCoreOutput]]


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that do not change while the engine core runs."""

    max_num_seqs: int
    """Rows."""
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_model_len: int
    """Most tokens of prompt and output together."""
    kv_capacity_tokens: int
    growth_room_tokens: int = 256
    """A sequence is admitted when every running one could still grow by this much: without it the newcomer would often
    be preempted a few steps later, and its prefill thrown away."""
    patience: int = PATIENCE
    """Shorter prompts go before a longer one until so many times its tokens were admitted; 0: first come, first
    served."""

    def __post_init__(self) -> None:
        """Raises ValueError for limits under which requests could starve."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): a step with a full batch needs one token for each"
            )
        longest = KvBudget(self.kv_capacity_tokens).longest_sequence
        if self.max_model_len > longest:
            raise ValueError(f"max_model_len ({self.max_model_len}) is more than the KV cache holds: {longest} tokens")


class Scheduler:
    """Owner of all requests of this engine core, from their arrival to their end."""

    def __init__(
        self, limits: SchedulerLimits, eos_token_ids: Iterable[int], chunk_budget: ChunkBudget | None = None
    ) -> None:
        """`chunk_budget` bounds the prefill of a step besides `max_num_batched_tokens`; None for no such bound."""
        self._limits = limits
        self._chunk_budget = chunk_budget or FixedChunkBudget(limits.max_num_batched_tokens)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._by_id: dict[RequestId, Sequence] = {}
        self._waiting = WaitingQueue()
        self._batch = Batch(limits.max_num_seqs, KvBudget(limits.kv_capacity_tokens))
        self._prefixes = PrefixCache(limits.kv_capacity_tokens)
        self._in_flight: list[StepShare] | None = None
        """What the plan that the device runs will have computed, in the order of its decode rows."""
        self._arrivals = 0
        self._ended: list[RequestKey] = []
        self._steps_total = 0
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0
        self._preemptions_total = 0
        self._finished_total = dict.fromkeys((reason.name.lower() for reason in FinishReason), 0)

    # --- requests in and out ----------------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._by_id)

    @property
    def has_work(self) -> bool:
        """Whether a plan is wanted: for requests, or to tell the device of the last free rows."""
        return bool(self._by_id or self._batch.has_releases)

    def add(self, request: EngineCoreRequest, prompt: "array[int]", chain: Tokens[BlockHash] = ()) -> OutputsByClient:
        """Takes a checked request; returns its end if it can never run, else nothing.

        `chain` names its prefixes (protocol.prefix_hash); without it none is looked up or stored. A request that is
        known already is ignored; a newer attempt of it silently replaces the older.
        """
        if not self._is_news(request):
            return {}
        refusal = self._refusal(prompt)
        if refusal is not None:
            return self._fail_at_once(request, refusal)
        due = self._due_in(len(prompt))
        sequence = Sequence(request, prompt, self._arrivals, self._limits.max_model_len, due, chain)
        self._arrivals += 1
        self._by_id[request.request_id] = sequence
        self._waiting.add(sequence)
        return {}

    def refuse(self, request: EngineCoreRequest, error: str) -> OutputsByClient:
        """A request that did not pass its checks: it ends at once, the others do not notice."""
        return self._fail_at_once(request, error) if self._is_news(request) else {}

    def abort(self, keys: Iterable[RequestKey]) -> None:
        """These requests end without an output. Unknown ones are skipped."""
        for key in keys:
            sequence = self._by_id.get(key.request_id)
            if sequence is not None and sequence.key == key:
                self._end(sequence, FinishReason.ABORT)

    def drop_client(self, client_index: ClientIndex) -> None:
        """All requests of this client end without an output."""
        self.abort([s.key for s in self._by_id.values() if s.request.client_index == client_index])

    def end_all(self, error: str) -> OutputsByClient:
        """Every request ends with FinishReason.ABORT and this text."""
        return self._end_with_a_word(list(self._by_id.values()), FinishReason.ABORT, error)

    def time_out(self, keys: Iterable[RequestKey]) -> OutputsByClient:
        """These requests end with FinishReason.TIMEOUT, behind what they have generated. Unknown ones are skipped."""
        found = [(key, self._by_id.get(key.request_id)) for key in keys]
        due = [sequence for key, sequence in found if sequence is not None and sequence.key == key]
        return self._end_with_a_word(due, FinishReason.TIMEOUT, None)

    def _end_with_a_word(self, ending: list[Sequence], reason: FinishReason, error: str | None) -> OutputsByClient:
        outputs: OutputsByClient = {}
        for sequence in ending:
            position = len(sequence.output)
            self._end(sequence, reason)
            _put(outputs, sequence.request, _last_word(sequence.request, position, reason, error))
        return outputs

    def take_ended(self) -> list[RequestKey]:
        """Requests that ended, for whatever reason, since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def take_block_changes(self) -> dict[BlockHash, bool]:
        """Blocks that were stored (true) or evicted (false) since this was last asked; of several changes the last."""
        return self._prefixes.take_changes()

    def live_requests(self) -> list[tuple[RequestKey, ClientIndex, int]]:
        """Key, client and number of prompt tokens of each request that has not ended."""
        return [(s.key, s.request.client_index, len(s.prompt)) for s in self._by_id.values()]

    def _is_news(self, request: EngineCoreRequest) -> bool:
        known = self._by_id.get(request.request_id)
        if known is None:
            return True
        if request.attempt > known.request.attempt:
            self._end(known, FinishReason.ABORT)
            return True
        if request.attempt < known.request.attempt:
            self._ended.append(request.key)
        return False

    def _refusal(self, prompt: Tokens[int]) -> str | None:
        if len(prompt) >= self._limits.max_model_len:
            return (
                f"the prompt has {len(prompt)} tokens, but prompt and output together can have "
                f"{self._limits.max_model_len} at most"
            )
        if len(self._waiting) >= MAX_WAITING_REQUESTS:
            return f"{len(self._waiting)} requests wait already"
        return None

    def _fail_at_once(self, request: EngineCoreRequest, error: str) -> OutputsByClient:
        self._count_end(request.key, FinishReason.ERROR)
        return {request.client_index: [_last_word(request, request.num_output_tokens, FinishReason.ERROR, error)]}

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is Status.RUNNING:
            self._prefixes.save([sequence])
            self._batch.release(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.finish()
        del self._by_id[sequence.request.request_id]
        self._count_end(sequence.key, reason)

    def _count_end(self, key: RequestKey, reason: FinishReason) -> None:
        self._ended.append(key)
        self._finished_total[reason.name.lower()] += 1

    # --- plan ---------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step. It must be run, and its result given to `update`, before the next plan is asked for."""
        assert self._in_flight is None, "the last plan has not been updated"
        self._prefixes.save(self._batch)
        self._preempt_until_fit()
        tokens = self._step_tokens()
        admitted = self._admit(tokens)
        shares = share_step(list(self._batch), tokens, self._waiting.admitted_tokens)
        shares.sort(key=lambda share: share.sequence.row)
        self._in_flight = shares
        blocks = self._prefixes.take_orders(self._batch.kv_tokens)
        return StepPlan(
            drops=blocks.drops,
            saves=blocks.saves,
            releases=self._batch.take_releases(),
            admissions=[Admission(s.row, s.prompt, tuple(s.output), s.request.sampling) for s in admitted],
            kv_rows=self._batch.kv_rows,
            kv_length=self._batch.kv_length,
            restores=blocks.restores,
            prefills=[_chunk(share) for share in shares if share.prefill_tokens],
            decodes=[_decode_row(share.sequence) for share in shares if share.decodes],
        )

    def _preempt_until_fit(self) -> None:
        while not self._batch.fits:
            sequence = self._batch.last
            self._batch.release(sequence)
            sequence.preempt()
            self._waiting.add(sequence)
            self._preemptions_total += 1

    def _step_tokens(self) -> StepTokens:
        decode_rows = sum(s.prefill_left == 0 for s in self._batch)
        joining = min(len(self._batch) + len(self._waiting), self._limits.max_num_seqs) - decode_rows
        prefill_tokens = self._chunk_budget.prefill_tokens(decode_rows, joining)
        return StepTokens(self._limits.max_num_batched_tokens, prefill_tokens)

    def _admit(self, tokens: StepTokens) -> list[Sequence]:
        """Gives rows to those who wait, in order, if the step has prefill tokens left for them.

        Who is passed over because others are prefilled first pays nothing and stays first in order; when it is overdue,
        those of its client that come after it wait too. For the first one without room in the KV cache all wait that
        come after it, else a long one might wait forever.
        """
        admitted: list[Sequence] = []
        held = set()
        if self._batch.is_full:
            return admitted
        for sequence in self._waiting.first(MOST_CANDIDATES):
            client = self._waiting.client_of(sequence)
            if client in held or self._prefixes.is_coming(sequence, self._batch):
                continue
            if not self._would_be_prefilled(sequence, tokens):
                if sequence.due <= self._waiting.admitted_tokens:
                    held.add(client)
                continue
            beside = self._prefixes.restored_tokens
            if not self._batch.can_admit(sequence, self._limits.growth_room_tokens, beside):
                break
            self._waiting.admit(sequence)
            self._batch.admit(sequence, self._due_in(sequence.num_tokens))
            self._prefixes.restore(sequence, self._batch.kv_tokens)
            admitted.append(sequence)
        return admitted

    def _due_in(self, tokens: int) -> int:
        return self._waiting.admitted_tokens + self._limits.patience * tokens

    def _would_be_prefilled(self, newcomer: Sequence, tokens: StepTokens) -> bool:
        own_order = self._prefill_order(newcomer, self._prefixes.stored_tokens(newcomer))
        decodes = ahead = 0
        for running in self._batch:
            if running.prefill_left == 0:
                decodes += 1
            elif self._prefill_order(running) < own_order:
                ahead += running.prefill_left
        return ahead < min(tokens.prefill, tokens.total - decodes)

    def _prefill_order(self, sequence: Sequence, stored_tokens: int = 0) -> PrefillOrder:
        return prefill_order(sequence, self._waiting.admitted_tokens, stored_tokens)

    # --- update -------------------------------------------------------------------------------------------------

    def update(self, sampled: Tokens[int], elapsed_s: float = 0.0) -> OutputsByClient:
        """Takes the tokens of the plan's decode rows, in their order; returns what the clients are told.

        `elapsed_s` is how long the device took: the chunk budget learns from it. Sequences that ended while the plan
        ran are passed over. Raises ValueError for a wrong number of tokens.
        """
        assert self._in_flight is not None, "there is no plan to update"
        shares, self._in_flight = self._in_flight, None
        self._prefixes.plan_done()
        self._steps_total += bool(shares)
        self._chunk_budget.observe(_shape(shares), elapsed_s)
        outputs: OutputsByClient = {}
        for share in shares:
            if share.prefill_tokens and share.sequence.status is Status.RUNNING:
                self._count_prompt_tokens(share.sequence, share.prefill_tokens)
                share.sequence.prefilled(share.prefill_tokens)
        for share, token_id in zip((share for share in shares if share.decodes), sampled, strict=True):
            if share.sequence.status is Status.RUNNING:
                _put(outputs, share.sequence.request, self._take_token(share.sequence, token_id))
        return outputs

    def _take_token(self, sequence: Sequence, token_id: int) -> EngineCoreOutput:
        position = len(sequence.output)
        self._count_prompt_tokens(sequence, 1)
        sequence.decoded(token_id)
        self._generation_tokens_total += 1
        reason, stop_reason = self._finish_reason(sequence, token_id)
        if reason is not None:
            self._end(sequence, reason)
        cached_tokens = (sequence.cached_tokens or 0) if position == 0 else 0
        request_id, attempt = sequence.key.request_id, sequence.key.attempt
        return EngineCoreOutput(request_id, attempt, position, [token_id], reason, stop_reason, cached_tokens)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> tuple[FinishReason | None, int | None]:
        # The sampler masks these tokens until `min_tokens`: what comes here may end the request.
        sampling = sequence.request.sampling
        if token_id in self._eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
        if len(sequence.output) >= sampling.max_tokens or sequence.num_tokens >= self._limits.max_model_len:
            return FinishReason.LENGTH, None
        return None, None

    def _count_prompt_tokens(self, sequence: Sequence, count: int) -> None:
        self._prompt_tokens_total += max(0, min(count, len(sequence.prompt) - sequence.num_computed))

    # --- observation --------------------------------------------------------------------------------------------

    def load(self) -> Load:
        """What there is to do, and what has been done."""
        return Load(
            running=len(self._batch),
            waiting=len(self._waiting),
            queued_prefill_tokens=self._waiting.queued_tokens + self._batch.prefill_left,
            kv_used_tokens=self._batch.kv_tokens,
            kv_capacity_tokens=self._limits.kv_capacity_tokens,
            steps_total=self._steps_total,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            finished_total=dict(self._finished_total),
            preemptions_total=self._preemptions_total,
            prefix_queries_tokens_total=self._prefixes.queries_tokens_total,
            prefix_hits_tokens_total=self._prefixes.hits_tokens_total,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self._waiting.check_invariants()
        self._batch.check_invariants()
        self._prefixes.check_invariants(None if self._in_flight is None else self._batch.kv_tokens)
        assert {id(s) for s in self._by_id.values()} == {id(s) for s in (*self._batch, *self._waiting)}
        assert all(request_id == s.request.request_id for request_id, s in self._by_id.items())
        assert all(s.num_tokens < self._limits.max_model_len for s in self._by_id.values())
        assert self._in_flight is None or self._batch.fits, "the plan breaks the KV bound"


def _put(outputs: OutputsByClient, request: EngineCoreRequest, output: EngineCoreOutput) -> None:
    outputs.setdefault(request.client_index, []).append(output)


def joined(first: OutputsByClient, second: OutputsByClient) -> OutputsByClient:
    """The outputs of both, those of `first` first."""
    return {client: first.get(client, []) + second.get(client, []) for client in first | second}


def _last_word(request: EngineCoreRequest, position: int, reason: FinishReason, error: str | None) -> EngineCoreOutput:
    return EngineCoreOutput(request.request_id, request.attempt, position, finish_reason=reason, error=error)


def _shape(shares: list[StepShare]) -> StepShape:
    return StepShape(sum(share.prefill_tokens for share in shares), sum(share.decodes for share in shares))


def _chunk(share: StepShare) -> PrefillChunk:
    sequence = share.sequence
    start = sequence.num_computed
    return PrefillChunk(sequence.row, start, sequence.tokens(start, share.prefill_tokens))


def _decode_row(sequence: Sequence) -> DecodeRow:
    last = sequence.num_tokens - 1
    return DecodeRow(sequence.row, last, sequence.tokens(last, 1)[0], len(sequence.output))
