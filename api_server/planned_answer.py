"""A checked request as the answering code needs it; each API has a function that makes one from the body."""

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from api_server.answer_format import AnswerFormat
from api_server.bad_words import bad_words_token_ids
from api_server.choices import ChoicePlan, RequestPlan
from api_server.errors import invalid
from api_server.generation_backend import GenerationBackend
from api_server.json_body import Fields
from api_server.output_grammar import output_grammar
from api_server.parsers.answer_parser import WHOLE_TEXT, AnswerGrammar
from api_server.placement import Placement
from api_server.placement_hints import headers_first
from api_server.sampling_options import Prompt, SamplingOptions, sampling_params
from api_server.served_model import ServedModel

MAX_CHOICES = 1024
"""Most generations of one request: prompts times n."""


class PlannedAnswer(msgspec.Struct, frozen=True):
    """What is to be generated, and how it is to be written down."""

    plan: RequestPlan
    format: AnswerFormat
    stream: bool
    continuous_usage: bool = False
    """Whether each chunk tells the usage so far."""

    def placed(self, by_headers: Placement) -> "PlannedAnswer":
        """The same, where the headers say."""
        placement = headers_first(by_headers, self.plan.placement)
        return msgspec.structs.replace(self, plan=msgspec.structs.replace(self.plan, placement=placement))


Planner = Callable[[Fields, GenerationBackend], Coroutine[Any, Any, PlannedAnswer]]
"""Checks everything before anything is submitted. Raises ApiError, and what `backend.model` raises."""


def request_plan(
    options: SamplingOptions,
    model: ServedModel,
    prompts: list[Prompt],
    request_prefix: str,
    grammar: AnswerGrammar = WHOLE_TEXT,
    is_single_call: bool = False,
) -> RequestPlan:
    """All choices of all prompts. Choice i of each prompt draws with seed + i. Raises ApiError."""
    if len(prompts) * options.n > MAX_CHOICES:
        raise invalid(f"prompts times n must be at most {MAX_CHOICES}", "n")
    seed = secrets.randbits(63) if options.seed is None else options.seed
    bad_words = bad_words_token_ids(options.bad_words, model)
    return RequestPlan(
        model=model,
        choices=[
            ChoicePlan(prompt.token_ids, sampling_params(options, model.card, prompt, seed + i, bad_words))
            for prompt in prompts
            for i in range(options.n)
        ],
        choices_per_prompt=options.n,
        priority=options.priority,
        cache_salt=options.cache_salt or "",
        placement=options.placement,
        request_prefix=request_prefix,
        stop_strings=options.stop_strings,
        include_stop_str_in_output=options.include_stop_str_in_output,
        skip_special_tokens=options.skip_special_tokens,
        grammar=grammar,
        output_grammar=output_grammar(options),
        is_single_call=is_single_call,
        keeps_tokens=options.token_telling.needs_entries,
    )
