"""`POST /v1/completions`: the request body (OpenAI API reference, "Create completion")."""

from typing import Any

from api_server.errors import ApiError, ErrorKind, invalid
from api_server.json_body import Fields, parse
from api_server.sampling_options import SamplingOptions
from api_server.unsupported import COMPLETION_SWITCHES

MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16

TextOrIds = str | list[int]


class CompletionRequest(SamplingOptions, kw_only=True):
    """The body, without the fields that this version refuses or that have no effect."""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    logprobs: int | None = None
    add_special_tokens: bool = True
    """Whether text prompts get the tokenizer's own prefix tokens, where the model has such."""
    echo: bool = False
    best_of: int | None = None
    """Only as many as are returned: nothing is drawn to be thrown away."""

    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def wanted_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo and self.logprobs is not None else self.prompt_logprobs


def parse_completion(fields: Fields) -> CompletionRequest:
    """The request, checked as far as that goes without the model. Raises ApiError."""
    request = parse(fields, CompletionRequest, COMPLETION_SWITCHES)
    request.check()
    if request.best_of is not None and request.best_of != request.n:
        raise ApiError(ErrorKind.NOT_SUPPORTED, "best_of other than n is not supported by this server", "best_of")
    if request.echo and request.logprobs is not None and request.prompt_logprobs is not None:
        raise invalid("prompt_logprobs and echo with logprobs exclude each other", "prompt_logprobs")
    return request


def split_prompts(prompt: str | list[Any], vocab_size: int) -> list[TextOrIds]:
    """The prompts, of which there is at least one. Raises ApiError naming the bad entry."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and type(prompt[0]) is int:
        return [check_token_ids(prompt, "prompt", vocab_size)]
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise invalid(f"prompt must hold 1 to {MAX_PROMPTS} prompts", "prompt")
    return [_text_or_ids(entry, f"prompt[{index}]", vocab_size) for index, entry in enumerate(prompt)]


def _text_or_ids(entry: Any, path: str, vocab_size: int) -> TextOrIds:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        return check_token_ids(entry, path, vocab_size)
    raise invalid(f"{path} must be a string or a list of token ids", path)


def check_token_ids(ids: list[Any], path: str, vocab_size: int) -> list[int]:
    """The ids. Raises ApiError naming the first that is none."""
    for index, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:  # a bool is an int to isinstance
            where = f"{path}[{index}]"
            raise invalid(f"{where} is not a token id of this model (0 to {vocab_size - 1})", where)
    return ids
