"""What a chat request asks of its model's template and parsers: tools, thoughts."""

from typing import Any

from api_server.chat_schema import ChatRequest
from api_server.chat_tools import parser_tools
from api_server.errors import ApiError, ErrorKind
from api_server.parsers.answer_parser import AnswerGrammar
from api_server.parsers.catalog import THINK_MARKERS
from api_server.served_model import ServedModel
from api_server.template_style import TemplateStyle


def check_model_takes(request: ChatRequest, model: ServedModel) -> None:
    """Whether the model can do what is asked. Raises ApiError; a model without a template is another's business."""
    if model.template is None:
        return
    style = model.template.style
    if request.offered_tools and not style.knows_tools:
        raise _not_supported(f"the chat template of {model.name} takes no tools", "tools")
    # With "none" the operator has said that calls stay text.
    if request.offered_tools and model.parsers.tools == "none" and model.wanted_parsers.tools == "auto":
        raise _not_supported(
            f"it is not known how {model.name} writes tool calls: the server needs tool_call_parser to be set", "tools"
        )
    if request.reasoning_effort is not None and not thinking_variables(request, style):
        raise _not_supported(f"the chat template of {model.name} takes no such reasoning_effort", "reasoning_effort")


def _not_supported(message: str, param: str) -> ApiError:
    return ApiError(ErrorKind.NOT_SUPPORTED, message, param)


def thinking_variables(request: ChatRequest, style: TemplateStyle) -> dict[str, Any]:
    """Template variables that stand for reasoning_effort; none when the template has nothing like it."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    if "reasoning_effort" in style.variables:
        return {"reasoning_effort": effort}
    return dict.fromkeys(style.variables, False) if effort == "none" else {}


def answer_grammar(request: ChatRequest, model: ServedModel, prompt: str) -> AnswerGrammar:
    """How the answers to this prompt are to be taken apart."""
    tools = parser_tools(request.offered_tools) if request.offered_tools else None
    return AnswerGrammar(model.parsers, tools, _are_thoughts_open(request, model, prompt))


def _are_thoughts_open(request: ChatRequest, model: ServedModel, prompt: str) -> bool:
    markers = THINK_MARKERS.get(model.parsers.reasoning)
    if markers is None:
        return False
    if not request.continue_final_message:
        return markers.is_open_at_end_of(prompt)
    begun = request.messages[-1].content
    return isinstance(begun, str) and markers.is_left_open_in(begun)
