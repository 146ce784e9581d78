"""Decides what each step of the device computes, and what its tokens mean for the requests.

Plain data in, plan out: no clock, no socket, no MLX. Each plan is run by the device, in order, and its result given to
`update`; with lookahead another plan may be asked for before that. Requests may be added and aborted at any time.

A step has a budget of tokens: one for each decoding sequence first, then chunks of prefill (`engine_core.chunk_budget`
says how many beside decodes, `engine_core.step_share` whose), so that a long prompt never stalls running streams.
`engine_core.newcomers` says who gets a row.

What a sequence will have in its row is counted when it is planned, not when the result comes: plans run in order, so a
plan may build on all that were made before it. Only the tokens that they sample are not known yet. A sequence whose
result ends it, or that is aborted, may have been planned once more: that row was computed in vain, and what comes of it
is dropped, because it belongs to a stay that is over. Its row is released by the next plan, which the device runs after
all that used it.

When sequences outgrow the KV cache (`engine_core.batch`), the youngest of the lowest priority loses its row and is
computed anew later; since a draw depends only on seed and position, and greedy choice on nothing else, its output goes
on as if nothing had happened. The first in order loses its row only when it is alone, and then gets a longer slot next:
so something always progresses.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Tokens

from engine_core.batch import Batch
from engine_core.block_changes import BlockChanges
from engine_core.chunk_budget import ChunkBudget, FixedChunkBudget
from engine_core.device import Admission, RowGrammar, StepPlan, StepResult
from engine_core.finish import finish_reason
from engine_core.grammar import Grammar
from engine_core.kv_pools import KvPools
from engine_core.newcomers import Newcomers
from engine_core.prefix_cache import PrefixCache
from engine_core.request_table import OutputsByClient, RequestTable, last_word, put_output
from engine_core.scheduler_limits import SchedulerLimits, too_long
from engine_core.sequence import Sequence, Status
from engine_core.ssd_tier import BlocksRead, SsdReport, SsdTier
from engine_core.step_share import StepShare, StepTokens, share_step, step_shape
from engine_core.waiting_queue import WaitingQueue
from protocol.identifiers import ClientIndex
from protocol.logprobs import TokenLogprobs, pack_logprobs
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, Load, RequestKey
from protocol.prefix_hash import BlockHash

MAX_WAITING_REQUESTS = 16_384
"""At this many a new request ends with an error; the coordinator's admission stops long before."""


class Scheduler:
    """Owner of all requests of this engine core, from their arrival to their end."""

    def __init__(
        self,
        limits: SchedulerLimits,
        eos_token_ids: Iterable[int],
        chunk_budget: ChunkBudget | None = None,
        ssd: SsdTier | None = None,
    ) -> None:
        """`chunk_budget` bounds the prefill of a step besides `max_num_batched_tokens`; None for no such bound. `ssd`
        is where blocks of prefixes are kept beyond RAM, if they are."""
        self._limits = limits
        self._chunk_budget = chunk_budget or FixedChunkBudget(limits.max_num_batched_tokens)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests = RequestTable()
        self._compiling: dict[RequestKey, Sequence] = {}
        """Those whose grammar is still to come: they wait for no row yet."""
        self._waiting = WaitingQueue()
        pools = KvPools(limits.pool_lengths, limits.kv_capacity_tokens, limits.max_num_seqs)
        self._batch = Batch(limits.max_num_seqs, pools)
        self._prefixes = PrefixCache(limits.kv_capacity_tokens, ssd, limits.checkpoint_tokens)
        self._newcomers = Newcomers(limits, self._waiting, self._batch, self._prefixes)
        self._in_flight: deque[list[StepShare]] = deque()
        """What the plans without a result will have computed, the oldest first, each in the order of its decode
        rows."""
        self._arrivals = 0
        self._steps_total = 0
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0
        self._preemptions_total = 0

    # --- requests in and out ----------------------------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or the device is to be told of the last free rows, or a result is to come."""
        return bool(self._requests or self._batch.has_news or self._in_flight)

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
        due = self._newcomers.due_in(len(prompt))
        sequence = Sequence(request, prompt, self._arrivals, self._limits.max_model_len, due, chain)
        self._arrivals += 1
        self._requests.add(sequence)
        if request.grammar is None:
            self._waiting.add(sequence)
        else:
            self._compiling[sequence.key] = sequence
        return {}

    def grammar_compiled(self, key: RequestKey, grammar: Grammar) -> None:
        """The request may run. Unknown ones, which have ended meanwhile, are skipped."""
        sequence = self._compiling.pop(key, None)
        if sequence is not None:
            sequence.compiled(grammar)
            self._waiting.add(sequence)

    def grammar_denied(self, key: RequestKey, error: str, *, blames_caller: bool = True) -> OutputsByClient:
        """The request ends with this error. Unknown ones are skipped."""
        sequence = self._compiling.get(key)
        if sequence is None:
            return {}
        return {sequence.request.client_index: [self._fail_for_grammar(sequence, error, blames_caller=blames_caller)]}

    def refuse(self, request: EngineCoreRequest, error: str) -> OutputsByClient:
        """A request that did not pass its checks: it ends at once, the others do not notice."""
        return self._fail_at_once(request, error) if self._is_news(request) else {}

    def abort(self, keys: Iterable[RequestKey]) -> None:
        """These requests end without an output. Unknown ones are skipped."""
        for sequence in self._requests.matching(keys):
            self._end(sequence, FinishReason.ABORT)

    def drop_client(self, client_index: ClientIndex) -> None:
        """All requests of this client end without an output."""
        for sequence in self._requests.of_client(client_index):
            self._end(sequence, FinishReason.ABORT)

    def end_all(self, error: str) -> OutputsByClient:
        """Every request ends with FinishReason.ABORT and this text."""
        return self._end_with_a_word(list(self._requests), FinishReason.ABORT, error)

    def time_out(self, keys: Iterable[RequestKey]) -> OutputsByClient:
        """These requests end with FinishReason.TIMEOUT, behind what they have generated. Unknown ones are skipped."""
        return self._end_with_a_word(self._requests.matching(keys), FinishReason.TIMEOUT, None)

    def _end_with_a_word(self, ending: list[Sequence], reason: FinishReason, error: str | None) -> OutputsByClient:
        outputs: OutputsByClient = {}
        for sequence in ending:
            position = len(sequence.output)
            self._end(sequence, reason)
            put_output(outputs, sequence.request, last_word(sequence.request, position, reason, error))
        return outputs

    def take_ended(self) -> list[RequestKey]:
        """Requests that ended, for whatever reason, since this was last asked."""
        return self._requests.take_ended()

    def take_block_changes(self) -> BlockChanges:
        """Blocks that were stored or evicted since this was last asked."""
        return self._prefixes.take_changes()

    def live_requests(self) -> list[tuple[RequestKey, ClientIndex, int]]:
        """Key, client and number of prompt tokens of each request that has not ended."""
        return [(s.key, s.request.client_index, s.request.num_prompt_tokens) for s in self._requests]

    def _is_news(self, request: EngineCoreRequest) -> bool:
        known = self._requests.known(request)
        if known is None:
            return True
        if request.attempt > known.request.attempt:
            self._end(known, FinishReason.ABORT)
            return True
        if request.attempt < known.request.attempt:
            self._requests.note_superseded(request.key)
        return False

    def _refusal(self, prompt: Tokens[int]) -> str | None:
        if reason := too_long(len(prompt), self._limits.max_model_len):
            return reason
        waiting = len(self._waiting) + len(self._compiling)
        if waiting >= MAX_WAITING_REQUESTS:
            return f"{waiting} requests wait already"
        return None

    def _fail_at_once(self, request: EngineCoreRequest, error: str) -> OutputsByClient:
        self._requests.count_end(request.key, FinishReason.ERROR)
        return {request.client_index: [last_word(request, request.num_output_tokens, FinishReason.ERROR, error)]}

    def _fail_for_grammar(self, sequence: Sequence, error: str, *, blames_caller: bool) -> EngineCoreOutput:
        request = sequence.request
        assert request.grammar is not None, sequence
        self._end(sequence, FinishReason.ERROR)
        position, field = len(sequence.output), request.grammar.field
        return last_word(
            request, position, FinishReason.ERROR, f"{field}: {error}", error_field=field if blames_caller else ""
        )

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is Status.RUNNING:
            self._prefixes.save([sequence])
            self._batch.release(sequence)
        elif self._compiling.pop(sequence.key, None) is None:
            self._waiting.remove(sequence)
        sequence.finish()
        self._requests.remove(sequence, reason)

    # --- plan ---------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step; None when there is nothing to do before a result or a request comes.

        A plan must be run, after all before it. At most one may be without a result when another is asked for.
        """
        assert len(self._in_flight) <= 1, "two plans have not been updated"
        self._prefixes.save(self._batch)
        self._preempt(self._batch.make_room())
        tokens = self._step_tokens()
        admitted = self._newcomers.admit(tokens)
        admitted_tokens = self._waiting.admitted_tokens
        shares = share_step(self._batch.can_step, tokens, admitted_tokens, self._prefixes.chunk_tokens)
        shares.sort(key=lambda share: share.sequence.row)
        rows = self._batch.take_orders(
            is_memory_wanted=self._newcomers.are_short_of_memory, beside=self._prefixes.restored_tokens
        )
        if not shares and not rows.changes:
            return None
        blocks = self._prefixes.take_orders(rows.plan_tokens, rows.releases)
        plan = StepPlan(
            drops=blocks.drops,
            loads=blocks.loads,
            saves=blocks.saves,
            checkpoint_drops=blocks.checkpoint_drops,
            checkpoint_saves=blocks.checkpoint_saves,
            releases=rows.releases,
            pool_slots=rows.pool_slots,
            moves=rows.moves,
            admissions=[self._admission(sequence) for sequence in admitted],
            copies=blocks.copies,
            restores=blocks.restores,
            prefills=[share.prefill_chunk() for share in shares if share.prefill_tokens],
            decodes=[share.decode_row() for share in shares if share.decodes],
        )
        self._take_off(shares)
        return plan

    def _preempt(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._waiting.add(sequence)
            self._preemptions_total += 1

    def _step_tokens(self) -> StepTokens:
        decode_rows = sum(s.prefill_left == 0 for s in self._batch.can_step)
        joining = min(len(self._batch) + len(self._waiting), self._limits.max_num_seqs) - decode_rows
        prefill_tokens = self._chunk_budget.prefill_tokens(decode_rows, joining)
        return StepTokens(self._limits.max_num_batched_tokens, prefill_tokens)

    def _admission(self, sequence: Sequence) -> Admission:
        slot, request = self._batch.slot(sequence), sequence.request
        grammar = None
        if request.grammar is not None:
            assert sequence.grammar is not None, sequence
            grammar = RowGrammar(sequence.grammar, request.grammar.starts_after)
        return Admission(sequence.row, slot, sequence.prompt, tuple(sequence.output), request.sampling, grammar)

    def _take_off(self, shares: list[StepShare]) -> None:
        for share in shares:
            sequence = share.sequence
            fed = share.prefill_tokens + share.decodes
            self._prompt_tokens_total += max(0, min(fed, len(sequence.prompt) - sequence.num_computed))
            sequence.planned(share.prefill_tokens, decodes=share.decodes)
        self._in_flight.append(shares)

    @property
    def is_result_awaited(self) -> bool:
        """Whether the newest plan without a result brings what somebody waits for: a first token, or a certain end."""
        newest = self._in_flight[-1] if self._in_flight else []
        return any(
            share.decodes and share.counts and (not share.sequence.output or share.sequence.is_at_its_end)
            for share in newest
        )

    # --- update -------------------------------------------------------------------------------------------------

    def update(self, result: StepResult) -> OutputsByClient:
        """Takes the result of the oldest plan that has none; returns what the clients are told.

        Sequences that ended, or lost their row, since they were planned are passed over. Raises ValueError for a
        wrong number of tokens.
        """
        assert self._in_flight, "there is no plan to update"
        shares = self._in_flight.popleft()
        self._prefixes.plan_done()
        self._steps_total += bool(shares)
        self._chunk_budget.observe(step_shape(shares), result.elapsed_s)
        outputs: OutputsByClient = {}
        for share in shares:
            if share.counts and share.sequence.row in result.prompt_logprobs:
                share.sequence.scored(result.prompt_logprobs[share.sequence.row])
        decodes = [share for share in shares if share.decodes]
        for index, (share, token_id) in enumerate(zip(decodes, result.token_ids, strict=True)):
            if share.counts:
                put_output(outputs, share.sequence.request, self._take_result(share.sequence, token_id, result, index))
        return outputs

    def _take_result(self, sequence: Sequence, token_id: int, result: StepResult, index: int) -> EngineCoreOutput:
        broken = result.grammar_ends.get(index)
        if broken is not None:
            return self._fail_for_grammar(sequence, broken, blames_caller=True)
        is_whole = index in result.grammar_ends
        return self._take_token(sequence, token_id, result.logprobs.get(index), is_whole=is_whole)

    def _take_token(
        self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None, *, is_whole: bool
    ) -> EngineCoreOutput:
        """`is_whole`: its grammar allows nothing more."""
        position = len(sequence.output)
        scores = sequence.take_prompt_logprobs()
        sequence.sampled(token_id)
        self._generation_tokens_total += 1
        reason, stop_reason = finish_reason(sequence, token_id, self._eos_token_ids, self._limits.max_model_len)
        if is_whole and reason in (None, FinishReason.LENGTH):
            reason = FinishReason.STOP
        if reason is not None:
            self._end(sequence, reason)
        return EngineCoreOutput(
            sequence.key.request_id,
            sequence.key.attempt,
            position,
            [token_id],
            reason,
            stop_reason,
            cached_tokens=(sequence.cached_tokens or 0) if position == 0 else 0,
            logprobs=None if logprobs is None else pack_logprobs([logprobs]),
            prompt_logprobs=pack_logprobs(scores) if scores else None,
        )

    # --- blocks on the SSD --------------------------------------------------------------------------------------

    def blocks_read(self, done: BlocksRead) -> None:
        """Blocks came from the SSD, for whoever waits for them."""
        self._prefixes.blocks_read(done)

    def ssd_reported(self, report: SsdReport) -> None:
        """The SSD holds other blocks than before."""
        self._prefixes.ssd_reported(report)

    # --- observation --------------------------------------------------------------------------------------------

    def load(self) -> Load:
        """What there is to do, and what has been done."""
        return Load(
            running=len(self._batch),
            waiting=len(self._waiting) + len(self._compiling),
            queued_prefill_tokens=self._waiting.queued_tokens + self._batch.prefill_left,
            kv_used_tokens=self._batch.kv_tokens,
            kv_capacity_tokens=self._limits.kv_capacity_tokens,
            steps_total=self._steps_total,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            finished_total=self._requests.finished_total,
            preemptions_total=self._preemptions_total,
            prefix_queries_tokens_total=self._prefixes.queries_tokens_total,
            prefix_hits_tokens_total=self._prefixes.hits_tokens_total,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self._waiting.check_invariants()
        self._batch.check_invariants()
        self._requests.check_invariants()
        self._prefixes.check_invariants(self._batch.plan_tokens if self._in_flight else None)
        everyone = (*self._batch, *self._waiting, *self._compiling.values())
        assert {id(s) for s in self._requests} == {id(s) for s in everyone}
        assert all(s.status is Status.WAITING and s.key == key for key, s in self._compiling.items())
        assert all(s.num_tokens < self._limits.max_model_len for s in self._requests)
