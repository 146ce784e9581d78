"""The choices of one HTTP request, each a generation of its own in the cluster: submit, merge, end.

`Choices` is used as a context manager: however the block is left (the end, an error, a caller that went away),
what still runs is aborted exactly once.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from api_server.choice_text import ChoiceText, TextDelta
from api_server.detokenizer import Detokenizer
from api_server.generation_backend import (
    AbortCause,
    Collector,
    GenerationBackend,
    GenerationFailed,
    Rejected,
    TokenDelta,
)
from api_server.parsers.answer_parser import WHOLE_TEXT, AnswerGrammar, AnswerParser
from api_server.parsers.call_ids import new_call_id, new_short_call_id
from api_server.placement import Placement, with_block_keys
from api_server.served_model import ServedModel
from api_server.stop_strings import StopStrings
from api_server.token_entries import TokenEntry, prompt_entries
from protocol.grammar import GrammarSpec
from protocol.sampling import SamplingParams


class ChoicePlan(msgspec.Struct, frozen=True):
    """One choice to be made."""

    prompt_ids: list[int]
    sampling: SamplingParams


class RequestPlan(msgspec.Struct, frozen=True):
    """A checked request, ready to be submitted."""

    model: ServedModel
    choices: list[ChoicePlan]
    """Prompt-major: all choices of the first prompt come first."""
    choices_per_prompt: int
    priority: int
    cache_salt: str
    placement: Placement
    """Without block keys."""
    request_prefix: str
    stop_strings: list[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    deadline_s: float = 0.0
    """Wall clock; 0 for none."""
    tenant: str = ""
    grammar: AnswerGrammar = WHOLE_TEXT
    """How answers are taken apart."""
    output_grammar: GrammarSpec | None = None
    """What the output has to look like."""
    is_single_call: bool = False
    """Whether a choice ends with its first tool call."""
    keeps_tokens: bool = False
    """Whether single tokens are told of."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(choice.prompt_ids) for choice in self.choices[:: self.choices_per_prompt])


class ChoiceDelta(msgspec.Struct, frozen=True):
    """What is new in one choice."""

    index: int
    delta: TextDelta
    prompt: list[TokenEntry] = []
    """With the first tokens of a choice, when log probabilities of the prompt were wanted."""


class Choices:
    """Owner of a request's running choices."""

    def __init__(self, backend: GenerationBackend, plan: RequestPlan) -> None:
        self._backend = backend
        self._plan = plan
        self._running: dict[int, Collector] = {}
        self._reads: dict[int, asyncio.Future[TokenDelta]] = {}
        """The pending `get` of each running choice, where there are several."""
        self._placements: list[Placement] = []
        """Of each prompt: its blocks are hashed once, for all its choices."""
        markers = plan.model.tokenizer.special_ids_in(plan.grammar.markers)
        self._texts = [_choice_text(plan, choice, markers) for choice in plan.choices]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = isinstance(error, GenerationFailed | Rejected)
        self._abort(list(self._running), AbortCause.ERROR if failed else AbortCause.DISCONNECT)
        await _cancel(list(self._reads.values()))

    async def submit(self) -> None:
        """Returns when all choices are accepted. Raises Rejected, GenerationFailed."""
        plan = self._plan
        for choice in plan.choices[:: plan.choices_per_prompt]:
            self._placements.append(
                await with_block_keys(plan.placement, plan.model, choice.prompt_ids, plan.cache_salt)
            )
        tasks = [asyncio.ensure_future(self._submit(index)) for index in range(len(self._plan.choices))]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    @property
    def running(self) -> bool:
        """Whether more is to come."""
        return bool(self._running)

    async def next(self) -> list[ChoiceDelta]:
        """Waits for what the running choices bring next. Raises GenerationFailed.

        A caller that comes back late finds more in each delta, never more deltas: collectors merge.
        """
        if len(self._texts) == 1:  # spares the common case a task for each delta
            return [self._take(0, await self._running[0].get())]
        for index, collector in self._running.items():
            if index not in self._reads:
                self._reads[index] = asyncio.ensure_future(collector.get())
        await asyncio.wait(self._reads.values(), return_when=asyncio.FIRST_COMPLETED)
        ready = sorted(index for index, read in self._reads.items() if read.done())
        return [self._take(index, self._reads.pop(index).result()) for index in ready]

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, of all choices."""
        return sum(text.completion_tokens for text in self._texts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed again, each prompt counted once."""
        return sum(text.cached_tokens for text in self._texts[:: self._plan.choices_per_prompt])

    def check_invariants(self) -> None:
        """A choice that has ended neither runs nor is read."""
        for index, text in enumerate(self._texts):
            text.check_invariants()
            assert not (index in self._running and text.finish)
        assert self._reads.keys() <= self._running.keys()

    async def _submit(self, index: int) -> None:
        plan, choice = self._plan, self._plan.choices[index]
        self._running[index] = await self._backend.submit(
            plan.model,
            choice.prompt_ids,
            choice.sampling,
            plan.priority,
            plan.cache_salt,
            plan.request_prefix,
            self._placements[index // plan.choices_per_prompt],
            plan.deadline_s,
            plan.tenant,
            plan.output_grammar,
        )

    def _take(self, index: int, delta: TokenDelta) -> ChoiceDelta:
        text = self._texts[index].push(delta)
        if delta.finish_reason is not None:
            del self._running[index]
        elif text.finish is not None:
            self._abort([index], AbortCause.STOP_STRING)
        return ChoiceDelta(index, text, self._prompt_entries(index, delta))

    def _prompt_entries(self, index: int, delta: TokenDelta) -> list[TokenEntry]:
        choice = self._plan.choices[index]
        is_first = self._texts[index].completion_tokens <= len(delta.token_ids)
        if choice.sampling.prompt_logprobs is None or not is_first or not delta.token_ids:
            return []
        detokenizer = Detokenizer(self._plan.model.tokenizer, [], self._plan.skip_special_tokens)
        return prompt_entries(detokenizer, choice.prompt_ids, delta.prompt_logprobs)

    def _abort(self, indices: Sequence[int], cause: AbortCause) -> None:
        collectors = [self._running.pop(index) for index in indices]
        if collectors:
            self._backend.abort(collectors, cause)


async def _cancel(futures: Sequence[asyncio.Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _choice_text(plan: RequestPlan, choice: ChoicePlan, markers: frozenset[int]) -> ChoiceText:
    stop_ids = frozenset({*choice.sampling.stop_token_ids, *plan.model.card.eos_token_ids})
    return ChoiceText(
        Detokenizer(plan.model.tokenizer, choice.prompt_ids, plan.skip_special_tokens, markers),
        StopStrings(plan.stop_strings, plan.include_stop_str_in_output),
        choice.sampling.min_tokens,
        frozenset() if plan.include_stop_str_in_output else stop_ids,
        AnswerParser(plan.grammar, new_short_call_id if plan.grammar.has_short_ids else new_call_id),
        plan.is_single_call,
        plan.keeps_tokens,
    )
