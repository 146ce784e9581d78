"""What a chat request asks of its model's template and parsers: tools, thoughts."""

from typing import Any

import msgspec

from api_server.chat_schema import ChatRequest
from api_server.chat_tools import parser_tools
from api_server.errors import ApiError, ErrorKind
from api_server.parsers.answer_parser import AnswerGrammar
from api_server.parsers.catalog import THINK_MARKERS
from api_server.served_model import ServedModel
from api_server.template_style import TemplateStyle
from protocol.grammar import GrammarSpec


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


def grammar_behind_thoughts(
    wanted: GrammarSpec | None, answer: AnswerGrammar, model: ServedModel
) -> GrammarSpec | None:
    """What is wanted of the output, where the answer begins: behind the thoughts that the prompt has opened.

    Raises ApiError when the model's answers are of another form, or the end of its thoughts is no token of its own.
    """
    if wanted is None:
        return None
    if answer.tools is not None:
        raise _not_supported(f"{wanted.field} beside tools is not supported: set tool_choice to none", wanted.field)
    if answer.is_harmony:
        raise _not_supported(f"{wanted.field} is not supported for {model.name}: it answers in channels", wanted.field)
    markers = THINK_MARKERS.get(answer.names.reasoning)
    if markers is None or not answer.thoughts_are_open:
        return wanted
    ends = model.tokenizer.encode(markers.closes[0], add_special_tokens=False)
    if len(ends) != 1 or model.tokenizer.added_token(ends[0]) is None:
        message = f"{wanted.field} is not supported for {model.name} while it thinks: turn its thoughts off"
        raise _not_supported(message, wanted.field)
    return msgspec.structs.replace(wanted, starts_after=tuple(ends))
