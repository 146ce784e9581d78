"""`POST /v1/chat/completions`: the request body (OpenAI API reference, "Create chat completion")."""

import json
from typing import Any, Literal

import msgspec

from api_server.chat_template import RESERVED_NAMES
from api_server.chat_tools import ToolDefinition, check_tool_choice, check_tools
from api_server.errors import invalid
from api_server.json_body import Fields, parse
from api_server.sampling_options import SamplingOptions
from api_server.template_style import TemplateMessage, TemplateStyle
from api_server.unsupported import CHAT_SWITCHES

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct, frozen=True):
    """One entry of a content array."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """What an earlier answer called."""

    name: str
    arguments: str | dict[str, Any]
    """JSON text, as OpenAI has it; some clients send the object."""


class ToolCall(msgspec.Struct, frozen=True):
    """One entry of an assistant message's tool_calls."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """One entry of `messages`."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """The thoughts of an earlier answer."""
    reasoning: str | None = None
    """The same by its newer name."""
    function_call: Any = None
    audio: Any = None


class ChatRequest(SamplingOptions, kw_only=True):
    """The body, without the fields that this version refuses or that have no effect."""

    messages: list[ChatMessage]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    """Newer name of max_tokens; wins when both are given."""
    add_generation_prompt: bool | None = None
    """Default: true, unless the last message is to be continued."""
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    tools: list[ToolDefinition] = msgspec.field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    add_special_tokens: bool = False
    """Whether the tokenizer's own prefix tokens come before the text of the template, which has them as a rule."""
    include_reasoning: bool = True
    reasoning_effort: Effort | None = None

    @property
    def offered_tools(self) -> list[ToolDefinition]:
        """What the model may call."""
        return [] if self.tool_choice == "none" else self.tools

    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def parse_chat(fields: Fields) -> ChatRequest:
    """The request, checked as far as that goes without the model. Raises ApiError."""
    request = parse(fields, ChatRequest, CHAT_SWITCHES)
    request.check()
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    if not request.messages:
        raise invalid("messages must not be empty", "messages")
    if request.continue_final_message and request.add_generation_prompt:
        raise invalid("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    check_tools(request.tools)
    check_tool_choice(request.tool_choice, bool(request.tools))
    reserved = sorted(RESERVED_NAMES & request.chat_template_kwargs.keys())
    if reserved:
        path = f"chat_template_kwargs.{reserved[0]}"
        raise invalid(f"{path} is set by the server", path)
    return request


def template_messages(messages: list[ChatMessage], style: TemplateStyle) -> list[TemplateMessage]:
    """The messages as the chat template gets them. Raises ApiError naming the message."""
    return [_template_message(message, f"messages[{index}]", style) for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, path: str, style: TemplateStyle) -> TemplateMessage:
    if message.role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}", f"{path}.role")
    for name, value in (("function_call", message.function_call), ("audio", message.audio)):
        if value is not None:
            raise invalid(f"{path}.{name} is not supported by this server", f"{path}.{name}")
    role = "system" if message.role == "developer" and not style.knows_developer_role else message.role
    result: TemplateMessage = {"role": role, "content": _text(message, path)}
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        result["tool_calls"] = [
            _template_call(call, f"{path}.tool_calls[{index}]", style.has_text_arguments)
            for index, call in enumerate(message.tool_calls)
        ]
    return result | _thoughts(message, style)


def _thoughts(message: ChatMessage, style: TemplateStyle) -> TemplateMessage:
    thoughts = message.reasoning_content or message.reasoning
    if not thoughts or message.role != "assistant":
        return {}
    # gpt-oss's template takes the thoughts, or the text, in front of a call, not both.
    excluded = "thinking" if message.tool_calls and message.content else ""
    return {key: thoughts for key in style.reasoning_keys if key != excluded}


def _text(message: ChatMessage, path: str) -> str:
    """The content as one string; text parts are joined by newlines."""
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise invalid(f"{path}.content is required", f"{path}.content")
    return "\n".join(_part_text(part, f"{path}.content[{index}]") for index, part in enumerate(message.content))


def _part_text(part: ContentPart, path: str) -> str:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type, "")
    if part.type not in ("text", "refusal"):
        raise invalid(f"{path}: content parts of type {part.type[:40]!r} are not supported by this model", path)
    if text is None:
        raise invalid(f"{path}.{part.type} is required", f"{path}.{part.type}")
    return text


def _template_call(call: ToolCall, path: str, as_text: bool) -> dict[str, Any]:
    if call.type != "function":
        raise invalid(f"{path}.type must be function", f"{path}.type")
    arguments = _arguments(call.function.arguments)
    if as_text and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _arguments(given: str | dict[str, Any]) -> str | dict[str, Any]:
    """The arguments as an object; text that is none (a model may have written it) stays text."""
    if isinstance(given, dict):
        return given
    try:
        decoded = msgspec.json.decode(given) if given.strip() else None
    except (msgspec.DecodeError, RecursionError):
        return given
    if decoded is None:
        return {}
    return decoded if isinstance(decoded, dict) else given
