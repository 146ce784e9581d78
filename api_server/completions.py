"""Plans `POST /v1/completions`: body, prompts, token ids."""

from api_server.completion_format import CompletionFormat
from api_server.completion_schema import DEFAULT_MAX_TOKENS, TextOrIds, parse_completion, split_prompts
from api_server.errors import invalid
from api_server.generation_backend import GenerationBackend
from api_server.json_body import Fields
from api_server.planned_answer import PlannedAnswer, request_plan
from api_server.prompt_encoding import encode_prompt
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
        Prompt(await _token_ids(prompt, model, request.add_special_tokens), DEFAULT_MAX_TOKENS)
        for prompt in split_prompts(request.prompt, model.card.vocab_size)
    ]
    for index, prompt in enumerate(prompts):
        if not prompt.token_ids:
            path = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
            raise invalid(f"{path} must not be empty", path)
    plan = request_plan(request, model, prompts, ID_PREFIX)
    answer_format = CompletionFormat(new_request_id(ID_PREFIX), int(wall_clock_s()), model.name, request.wants_usage)
    return PlannedAnswer(plan, answer_format, request.stream)


async def _token_ids(prompt: TextOrIds, model: ServedModel, add_special_tokens: bool) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return await encode_prompt(model, prompt, add_special_tokens and model.card.adds_special_tokens)
