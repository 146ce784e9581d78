"""Plans `POST /v1/completions`: body, prompts, token ids."""

from msgspec import UNSET

from api_server.completion_format import CompletionFormat, Echo
from api_server.completion_schema import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    TextOrIds,
    parse_completion,
    split_prompts,
)
from api_server.detokenizer import Detokenizer
from api_server.errors import invalid
from api_server.generation_backend import GenerationBackend
from api_server.json_body import Fields
from api_server.planned_answer import PlannedAnswer, request_plan
from api_server.prompt_encoding import MOST_TRUNCATED_CONTEXTS, encode_prompt
from api_server.sampling_options import Prompt
from api_server.served_model import ServedModel
from protocol.identifiers import new_request_id
from protocol.messages import wall_clock_s

ID_PREFIX = "cmpl"


async def plan_completion(fields: Fields, backend: GenerationBackend) -> PlannedAnswer:
    """Raises ApiError, UnknownModel, NoModel."""
    request = parse_completion(fields)
    model = await backend.model(request.model)
    prompts = [
        Prompt(await _token_ids(prompt, model, request), DEFAULT_MAX_TOKENS)
        for prompt in split_prompts(request.prompt, model.card.vocab_size)
    ]
    for index, prompt in enumerate(prompts):
        if not prompt.token_ids:
            path = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
            raise invalid(f"{path} must not be empty", path)
    plan = request_plan(request, model, prompts, ID_PREFIX)
    answer_format = CompletionFormat(
        new_request_id(ID_PREFIX),
        int(wall_clock_s()),
        model.name,
        request.wants_usage,
        request.token_telling,
        _echoes(request, model, prompts),
    )
    return PlannedAnswer(plan, answer_format, request.stream, request.wants_continuous_usage)


async def _token_ids(prompt: TextOrIds, model: ServedModel, request: CompletionRequest) -> list[int]:
    token_ids = prompt
    if isinstance(token_ids, str):
        adds_special_tokens = request.add_special_tokens and model.card.adds_special_tokens
        most_contexts = 1 if request.truncate_prompt_tokens is None else MOST_TRUNCATED_CONTEXTS
        token_ids = await encode_prompt(model, token_ids, adds_special_tokens, most_contexts)
    return request.truncated(token_ids, model.card.max_model_len)


def _echoes(request: CompletionRequest, model: ServedModel, prompts: list[Prompt]) -> list[Echo]:
    """What each choice tells of its prompt; [] when nothing is asked for."""
    if not request.echo and not request.return_token_ids:
        return []
    echoes = [
        Echo(
            _text(model, prompt.token_ids, request.skip_special_tokens) if request.echo else "",
            prompt.token_ids if request.return_token_ids else UNSET,
        )
        for prompt in prompts
    ]
    return [echo for echo in echoes for _ in range(request.n)]


def _text(model: ServedModel, token_ids: list[int], skip_special_tokens: bool) -> str:
    """As the detokenizer of the output reads it: so prompt and output join, also within a character."""
    detokenizer = Detokenizer(model.tokenizer, [], skip_special_tokens)
    return "".join(map(detokenizer.push, token_ids))
