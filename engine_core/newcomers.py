"""Who of those that wait gets a row in a step: the admission policy.

Who waits gets a row in the order of `engine_core.fair_queue`, when the step would prefill it; with what is there of
its prefix already (`engine_core.prefix_cache`). A prefix that several requests bring together is computed once: the
others wait for it.
"""

from engine_core.batch import Batch
from engine_core.prefix_cache import PrefixCache
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.sequence import Sequence
from engine_core.step_share import PrefillOrder, StepTokens, prefill_order
from engine_core.waiting_queue import WaitingQueue

MOST_CANDIDATES = 64
"""So many of those who wait are looked at in a step."""
MOST_PASSED_OVER = 8
"""After so many of them that the step would not prefill it is left at that: those behind are longer in most cases, and
to look at 64 beside 34 running ones costs 7 ms."""


class Newcomers:
    """Moves sequences from the queue to the batch. Of its own it has only what the last `admit` found."""

    def __init__(self, limits: SchedulerLimits, waiting: WaitingQueue, batch: Batch, prefixes: PrefixCache) -> None:
        self._limits = limits
        self._waiting = waiting
        self._batch = batch
        self._prefixes = prefixes
        self.are_short_of_memory = False
        """Whether someone would have been admitted if the pools of the KV cache had been smaller."""

    def admit(self, tokens: StepTokens) -> list[Sequence]:
        """Gives rows to those who wait, in order, if the step has prefill tokens left for them.

        Who is passed over because others are prefilled first pays nothing and stays first in order. When it is overdue
        all wait that come after it, else slightly shorter ones of another client might go before it without end; and so
        they do for the first one without room in the KV cache.
        """
        self.are_short_of_memory = False
        admitted: list[Sequence] = []
        passed_over = 0
        if self._batch.is_full:
            return admitted
        for sequence in self._waiting.first(MOST_CANDIDATES):
            if not self._would_be_prefilled(sequence, tokens):
                passed_over += 1
                if passed_over == MOST_PASSED_OVER or (self._is_overdue(sequence) and not self._is_coming(sequence)):
                    break
                continue
            if self._is_coming(sequence):
                continue
            if not self._has_room(sequence):
                break
            self._admit(sequence)
            admitted.append(sequence)
        return admitted

    def _is_coming(self, sequence: Sequence) -> bool:
        return self._prefixes.is_coming(sequence, self._batch, is_overdue=self._is_overdue(sequence))

    def due_in(self, tokens: int) -> int:
        """When a sequence of so many tokens that comes now is overdue."""
        return self._waiting.admitted_tokens + self._limits.patience * tokens

    def _admit(self, sequence: Sequence) -> None:
        self._waiting.admit(sequence)
        self._batch.admit(sequence, self.due_in(sequence.num_tokens))
        self._prefixes.restore(sequence, self._batch, self._batch.plan_tokens)

    def _has_room(self, sequence: Sequence) -> bool:
        if not self._batch.can_admit(sequence, self._limits.growth_tokens):
            return False
        has_slot = self._batch.has_slot(sequence, self._prefixes.restored_tokens)
        self.are_short_of_memory = not has_slot
        return has_slot

    def _is_overdue(self, sequence: Sequence) -> bool:
        return sequence.due <= self._waiting.admitted_tokens

    def _would_be_prefilled(self, newcomer: Sequence, tokens: StepTokens) -> bool:
        own_order = self._prefill_order(newcomer, self._prefixes.available_tokens(newcomer, self._batch))
        decodes = ahead = 0
        for running in self._batch.can_step:
            if running.prefill_left == 0:
                decodes += 1
            elif self._prefill_order(running) < own_order:
                ahead += running.prefill_left
        return ahead < min(tokens.prefill, tokens.total - decodes)

    def _prefill_order(self, sequence: Sequence, available_tokens: int = 0) -> PrefillOrder:
        return prefill_order(sequence, self._waiting.admitted_tokens, available_tokens)
