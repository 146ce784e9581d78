"""Sampling fields that chat and completions share: ranges, defaults, and the engine core's parameters."""

from typing import NamedTuple, TypeVar

import msgspec

from api_server.bad_words import check_bad_words
from api_server.errors import ApiError, ErrorKind, invalid
from api_server.logprob_format import TokenTelling
from api_server.output_grammar import ResponseFormat, Schema, StructuredOutputs
from api_server.placement import Placement
from api_server.placement_hints import check_session_key
from protocol.card import ModelCard
from protocol.logprobs import MAX_LOGPROBS
from protocol.sampling import GREEDY_BELOW, SamplingParams

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_PROMPT_LOGPROBS = 2**21
"""Of one prompt; with their ids 16 MiB on their way from the engine core."""
MAX_CACHE_SALT_CHARS = 256
MAX_INT32 = 2**31 - 1
SEED_RANGE = (-(2**63), 2**63 - 1)
"""OpenAI's seeds are signed 64-bit integers."""
UINT64_MASK = 2**64 - 1

Number = TypeVar("Number", int, float)


class Range(NamedTuple):
    """Of a number."""

    low: float
    high: float
    """Written out in errors as given here, integers as integers."""
    low_excluded: bool = False

    def holds(self, value: float) -> bool:
        """Whether the number is in it; NaN is in none."""
        return (self.low < value or (value == self.low and not self.low_excluded)) and value <= self.high

    def __str__(self) -> str:
        return f"{'greater than' if self.low_excluded else 'at least'} {self.low} and at most {self.high}"


RANGES = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, low_excluded=True),
    "top_k": Range(-1, MAX_INT32),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0.01, 100),  # beyond these logits leave float16
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "n": Range(1, MAX_N),
    "min_tokens": Range(0, MAX_INT32),
    "max_tokens": Range(1, MAX_INT32),
    "max_completion_tokens": Range(1, MAX_INT32),
    "top_logprobs": Range(0, MAX_LOGPROBS),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
    "truncate_prompt_tokens": Range(-1, MAX_INT32),
    "priority": Range(-MAX_INT32, MAX_INT32),
}


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingOptions(msgspec.Struct, kw_only=True):
    """Request fields of both APIs; None means not given (the model's default, then the API's)."""

    model: str | None = None
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    priority: int = 0
    cache_salt: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    """OpenAI's name of a key that prompts with a common beginning share; session_id wins."""

    def check(self) -> None:
        """All that can be checked without the model. Raises ApiError."""
        for name, value in msgspec.structs.asdict(self).items():
            if name in RANGES and type(value) in (int, float) and not RANGES[name].holds(value):
                raise invalid(f"{name} must be {RANGES[name]}", name)
        if self.seed is not None and not SEED_RANGE[0] <= self.seed <= SEED_RANGE[1]:
            raise invalid("seed must be a signed 64-bit integer", "seed")
        if self.cache_salt is not None and not 1 <= len(self.cache_salt) <= MAX_CACHE_SALT_CHARS:
            raise invalid(f"cache_salt must have 1 to {MAX_CACHE_SALT_CHARS} characters", "cache_salt")
        if self.prompt_logprobs is not None and self.stream:  # as in vLLM: they belong to no chunk
            raise invalid("prompt_logprobs is not allowed when stream is true", "prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
        check_bad_words(self.bad_words)
        for name, value in (("session_id", self.session_id), ("prompt_cache_key", self.prompt_cache_key)):
            if value is not None:
                check_session_key(value, name)
        self._check_stops()
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed when stream is true", "stream_options")

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether each chunk of the stream tells the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats is True

    @property
    def token_telling(self) -> TokenTelling:
        """What is to be told of single tokens."""
        return TokenTelling(
            self.wanted_logprobs() is not None,
            self.return_token_ids,
            self.return_tokens_as_token_ids,
            self.prompt_logprobs is not None,
        )

    @property
    def placement(self) -> Placement:
        """What the body says of where the request had better run."""
        return Placement(self.session_id or self.prompt_cache_key or "")

    def token_limit(self) -> int | None:
        """What the caller set as the most tokens to generate."""
        return self.max_tokens

    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token the caller wants; None for no log probabilities."""
        return None

    def wanted_prompt_logprobs(self) -> int | None:
        """The same of each token of the prompt."""
        return self.prompt_logprobs

    def truncated(self, token_ids: list[int], max_model_len: int) -> list[int]:
        """The end of the prompt that the caller wants; at -1 what leaves room for the output in the context."""
        if self.truncate_prompt_tokens is None:
            return token_ids
        if self.truncate_prompt_tokens == -1:
            return token_ids[-max(1, max_model_len - (self.token_limit() or 1)) :]
        return token_ids[-self.truncate_prompt_tokens :]

    def _check_stops(self) -> None:
        stops = self.stop_strings
        if len(stops) > MAX_STOP_STRINGS:
            raise invalid(f"stop has {len(stops)} entries, at most {MAX_STOP_STRINGS} are allowed", "stop")
        for index, text in enumerate(stops):
            if not 1 <= len(text) <= MAX_STOP_CHARS:
                path = "stop" if isinstance(self.stop, str) else f"stop[{index}]"
                raise invalid(f"{path} must have 1 to {MAX_STOP_CHARS} characters", path)


class Prompt(NamedTuple):
    """One prompt with what the sampling of its choices needs."""

    token_ids: list[int]
    default_max_tokens: int | None
    """For a caller that set no limit; None is the rest of the context."""


def sampling_params(
    options: SamplingOptions,
    card: ModelCard,
    prompt: Prompt,
    seed: int,
    bad_words_token_ids: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """The parameters of one choice. `seed` is its own, any integer. Raises ApiError, also for a prompt too long."""
    temperature = _first(options.temperature, card.defaults.temperature, 1.0)
    max_tokens = _max_tokens(options, card, prompt)
    if options.min_tokens > max_tokens:
        raise invalid(f"min_tokens ({options.min_tokens}) is above max_tokens ({max_tokens})", "min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed & UINT64_MASK,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_first(options.top_p, card.defaults.top_p, 1.0),
        top_k=min(max(0, _first(options.top_k, card.defaults.top_k, 0)), card.vocab_size),
        min_p=_first(options.min_p, card.defaults.min_p, 0.0),
        repetition_penalty=_first(options.repetition_penalty, card.defaults.repetition_penalty, 1.0),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        min_tokens=options.min_tokens,
        stop_token_ids=_stop_token_ids(options, card.vocab_size),
        ignore_eos=options.ignore_eos,
        logit_bias=_logit_bias(options.logit_bias, card.vocab_size),
        logprobs=options.wanted_logprobs(),
        allowed_token_ids=_allowed_token_ids(options.allowed_token_ids, card.vocab_size),
        bad_words_token_ids=bad_words_token_ids,
        prompt_logprobs=_prompt_logprobs(options, prompt),
    )


def _first(given: Number | None, default: Number | None, otherwise: Number) -> Number:
    return given if given is not None else default if default is not None else otherwise


def _max_tokens(options: SamplingOptions, card: ModelCard, prompt: Prompt) -> int:
    room = card.max_model_len - len(prompt.token_ids)
    wanted = options.token_limit()
    if room < 1 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" and {wanted} tokens of output were asked for"
        raise ApiError(
            ErrorKind.CONTEXT_LENGTH,
            f"this model's context length is {card.max_model_len} tokens; "
            f"the prompt has {len(prompt.token_ids)} tokens{asked}",
            "max_tokens" if room >= 1 else None,
        )
    return min(room, wanted or prompt.default_max_tokens or room)


def _prompt_logprobs(options: SamplingOptions, prompt: Prompt) -> int | None:
    wanted = options.wanted_prompt_logprobs()
    if wanted is not None and len(prompt.token_ids) * (1 + wanted) > MAX_PROMPT_LOGPROBS:
        field = "logprobs" if options.prompt_logprobs is None else "prompt_logprobs"
        raise invalid(f"{field} of a prompt: at most {MAX_PROMPT_LOGPROBS} in all, alternatives included", field)
    return wanted


def _stop_token_ids(options: SamplingOptions, vocab_size: int) -> tuple[int, ...]:
    if len(options.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid(f"stop_token_ids has more than {MAX_STOP_TOKEN_IDS} entries", "stop_token_ids")
    return _token_ids("stop_token_ids", options.stop_token_ids, vocab_size)


def _allowed_token_ids(token_ids: list[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    if token_ids is None:
        return None
    if not 1 <= len(token_ids) <= MAX_ALLOWED_TOKEN_IDS:
        raise invalid(f"allowed_token_ids must have 1 to {MAX_ALLOWED_TOKEN_IDS} entries", "allowed_token_ids")
    return _token_ids("allowed_token_ids", token_ids, vocab_size)


def _token_ids(field: str, token_ids: list[int], vocab_size: int) -> tuple[int, ...]:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            path = f"{field}[{index}]"
            raise invalid(f"{path} is not a token id of this model (0 to {vocab_size - 1})", path)
    return tuple(token_ids)


def _logit_bias(biases: dict[str, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > MAX_LOGIT_BIASES:
        raise invalid(f"logit_bias has more than {MAX_LOGIT_BIASES} entries", "logit_bias")
    checked = {}
    for key, bias in biases.items():
        if not _is_token_id(key, vocab_size):
            raise invalid(
                f"logit_bias: {key[:20]!r} is not a token id of this model (0 to {vocab_size - 1})", "logit_bias"
            )
        if not -100 <= bias <= 100:
            raise invalid(f"logit_bias[{key}] must be from -100 to 100", "logit_bias")
        checked[int(key)] = bias
    return checked


def _is_token_id(key: str, vocab_size: int) -> bool:
    # Ten digits hold any token id; longer ones would only be slow to convert. With "01" beside "1" one would be lost.
    return key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key and int(key) < vocab_size
