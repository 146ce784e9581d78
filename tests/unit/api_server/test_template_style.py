"""What templates expect: read from their source, and found by trying them."""

import pytest
from http_fakes import CHATML

from api_server.chat_schema import ChatMessage, FunctionCall, ToolCall, template_messages
from api_server.chat_template import ChatTemplate
from api_server.template_style import TemplateStyle

CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
AS_MAPPING = CALLS.replace("CALL", "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}")
AS_JSON = CALLS.replace("CALL", "{{ c.function.arguments | tojson }}")
EITHER = CALLS.replace(
    "CALL",
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
    "{% endif %}",
)
JOINED = CALLS.replace("CALL", "{{ 'x' + c.function.arguments }}")
PRINTED = CALLS.replace("CALL", "{{ c.function.arguments }}")
NEVER = CALLS.replace("CALL", "{{ raise_exception('no calls: arguments') }}")


@pytest.mark.parametrize(
    ("source", "has_text_arguments"),
    [(AS_MAPPING, False), (AS_JSON, False), (EITHER, False), (JOINED, True), (PRINTED, True), (NEVER, False)],
)
def test_arguments_have_the_form_that_the_template_can_use(source: str, has_text_arguments: bool) -> None:
    # BR-c15
    assert ChatTemplate(source, {}).style.has_text_arguments is has_text_arguments


@pytest.mark.parametrize("source", [AS_MAPPING, AS_JSON, EITHER, JOINED, PRINTED])
@pytest.mark.parametrize("given", ['{"city": "Oslo"}', {"city": "Oslo"}, "{}", {}, "", "null"])
def test_earlier_calls_render_with_every_template(source: str, given: object) -> None:
    # BR-c15
    template = ChatTemplate(source, {})
    call = ToolCall("c1", FunctionCall("f", given))  # type: ignore[arg-type]
    messages = template_messages([ChatMessage("assistant", None, tool_calls=[call])], template.style)
    rendered = template.render(messages, True, {})
    assert ("Oslo" in rendered) == ("Oslo" in str(given))
    assert "'city'" not in rendered


def test_the_source_says_the_rest() -> None:
    assert ChatTemplate(CHATML, {}).style == TemplateStyle()
    source = "{{ tools }}{{ developer }}{{ m.reasoning_content }}{{ enable_thinking }}{{ reasoning_effort }}"
    style = ChatTemplate(source, {}).style
    assert style.knows_tools
    assert style.knows_developer_role
    assert style.reasoning_keys == ("reasoning_content",)
    assert style.variables == {"enable_thinking", "reasoning_effort"}


def test_thoughts_go_where_the_template_looks_for_them() -> None:
    style = TemplateStyle(reasoning_keys=("reasoning_content", "thinking"))
    call = ToolCall("c1", FunctionCall("f", "{}"))
    given = [
        ChatMessage("user", "x", reasoning="not mine"),
        ChatMessage("assistant", "y", reasoning="a"),
        ChatMessage("assistant", "y", reasoning_content="b", tool_calls=[call]),
        ChatMessage("assistant", None, reasoning_content="c", tool_calls=[call]),
    ]
    made = template_messages(given, style)
    thoughts = [{key: message[key] for key in style.reasoning_keys if key in message} for message in made]
    assert thoughts == [
        {},
        {"reasoning_content": "a", "thinking": "a"},
        {"reasoning_content": "b"},
        {"reasoning_content": "c", "thinking": "c"},
    ]
