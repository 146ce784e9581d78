"""Plans `POST /v1/chat/completions`: body, chat template, token ids."""

import asyncio

import msgspec

from api_server.chat_format import ChatFormat
from api_server.chat_parsing import answer_grammar, check_model_takes, grammar_behind_thoughts, thinking_variables
from api_server.chat_schema import ChatRequest, parse_chat, template_messages
from api_server.chat_template import ChatTemplate
from api_server.chat_tools import template_tools
from api_server.errors import invalid
from api_server.generation_backend import GenerationBackend
from api_server.json_body import Fields
from api_server.planned_answer import PlannedAnswer, request_plan
from api_server.prompt_encoding import MOST_TRUNCATED_CONTEXTS, encode_prompt
from api_server.sampling_options import Prompt
from api_server.served_model import ServedModel
from api_server.template_style import TemplateMessage
from api_server.tokenizer import LONG_TEXT_CHARS
from protocol.identifiers import new_request_id
from protocol.messages import wall_clock_s

ID_PREFIX = "chatcmpl"
MANY_MESSAGES = 100
"""Conversations above this are rendered in a thread: templates may look at all messages for each message."""


async def plan_chat(fields: Fields, backend: GenerationBackend) -> PlannedAnswer:
    """Raises ApiError, TemplateRefused, UnknownModel, NoModel."""
    request = parse_chat(fields)
    model = await backend.model(request.model)
    check_model_takes(request, model)
    text = await render_prompt(request, model)
    most_contexts = 1 if request.truncate_prompt_tokens is None else MOST_TRUNCATED_CONTEXTS
    found = await encode_prompt(model, text, request.add_special_tokens, most_contexts)
    if not found:
        raise invalid("the messages give an empty prompt", "messages")
    token_ids = request.truncated(found, model.card.max_model_len)
    prompt = Prompt(token_ids, model.card.defaults.max_tokens)
    grammar = answer_grammar(request, model, text)
    plan = request_plan(request, model, [prompt], ID_PREFIX, grammar, not request.parallel_tool_calls)
    behind_thoughts = grammar_behind_thoughts(plan.output_grammar, grammar, model)
    plan = msgspec.structs.replace(plan, output_grammar=behind_thoughts)
    answer_id = new_request_id(ID_PREFIX)
    answer_format = ChatFormat(
        answer_id,
        int(wall_clock_s()),
        model.name,
        request.n,
        request.wants_usage,
        request.include_reasoning,
        request.token_telling,
        token_ids,
    )
    return PlannedAnswer(plan, answer_format, request.stream, request.wants_continuous_usage)


async def render_prompt(request: ChatRequest, model: ServedModel) -> str:
    """The text that the model continues. Raises ApiError, TemplateRefused."""
    template = model.template
    if template is None:
        raise invalid(f"the model {model.name} has no chat template: use /v1/completions", "messages")
    messages = template_messages(request.messages, template.style)
    if len(messages) <= MANY_MESSAGES and sum(len(message["content"]) for message in messages) <= LONG_TEXT_CHARS:
        return _render_now(request, template, messages)
    return await asyncio.to_thread(_render_now, request, template, messages)


def _render_now(request: ChatRequest, template: ChatTemplate, messages: list[TemplateMessage]) -> str:
    kwargs = thinking_variables(request, template.style) | request.chat_template_kwargs
    tools = template_tools(request.offered_tools) or None
    if request.continue_final_message:
        return template.render_open_ended(messages, kwargs, tools)
    return template.render(messages, request.add_generation_prompt is not False, kwargs, tools)
