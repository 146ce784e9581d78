"""Chat templates: what they may use, what they may not do, and where a continued message ends."""

import itertools
from datetime import datetime
from typing import Any

import pytest
from http_fakes import CHATML

from api_server.chat_template import MAX_MESSAGE_CHARS, ChatTemplate, TemplateRefused
from protocol.errors import ProtocolError

HI = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] = HI, **kwargs: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, True, kwargs)


def test_chatml() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}", "<s>"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%Y-%m') }}", "2026-11"),
        ("{% generation %}answer{% endgeneration %}", "answer"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{{ messages[0]['content'].split('i')[0] }}", "h"),
        ("{% if tools %}t{% endif %}{% if documents %}d{% endif %}{{ enable_thinking }}", "False"),
        (
            "{% set n = namespace(x='a') %}{% for m in messages %}{% set n.x = n.x ~ m.role %}{% endfor %}{{ n.x }}",
            "auser",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) + f(2) }}", "<1><2>"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2026, 11, 5))
    assert template.render(HI, True, {"enable_thinking": False}) == expected


def test_the_templates_own_refusal_reaches_the_caller() -> None:
    # BR-n09
    with pytest.raises(TemplateRefused, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(TemplateRefused) as caught:
        render("{{ raise_exception('x' * 5000) }}")
    assert len(str(caught.value)) < MAX_MESSAGE_CHARS + 10


@pytest.mark.parametrize(
    "source",
    ["{{ missing.attribute }}", "{{ 1 // 0 }}", "{{ messages + 1 }}", "{{ messages[5].role }}", "{{ none.x() }}"],
)
def test_a_template_that_fails_on_these_messages_refuses_them(source: str) -> None:
    with pytest.raises(TemplateRefused):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ ([0] * 10**9) | length }}",
        "{{ 10 ** 10000 }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
    ],
)
def test_what_templates_may_not_do(source: str) -> None:
    with pytest.raises(TemplateRefused):
        render(source)


@pytest.mark.parametrize("operator", ["~", "+"])
def test_a_text_that_doubles_is_stopped_by_its_length(operator: str) -> None:
    source = "{% set n = namespace(s='ab') %}{% for i in range(28) %}{% set n.s = n.s OP n.s %}{% endfor %}"
    with pytest.raises(TemplateRefused, match="more than 33554432 characters"):
        render(source.replace("OP", operator))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_rendering_ends_when_its_time_is_up(source: str) -> None:
    ticks = itertools.count()
    template = ChatTemplate(source, {}, clock=lambda: next(ticks) / 1000, limit_s=2.0)
    with pytest.raises(TemplateRefused, match="longer than 2 s"):
        template.render(HI, True, {})
    assert next(ticks) < 3000


def test_a_template_that_is_not_jinja_is_the_cards_fault() -> None:
    with pytest.raises(ProtocolError, match="chat template, line 2"):
        ChatTemplate("\n{% if %}", {})


@pytest.mark.parametrize("content", ["Once upon", "", "hi", "Once upon  "])
def test_a_continued_message_ends_the_prompt_where_its_text_ends(content: str) -> None:
    # BR-n03: earlier messages may hold the same text
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    text = ChatTemplate(CHATML, {}).render_open_ended(messages, {})
    assert text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{content}"


def test_a_template_that_drops_the_continued_message_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="leaves out"):
        ChatTemplate("{{ messages[0].content }}", {}).render_open_ended(
            [*HI, {"role": "assistant", "content": "x"}], {}
        )


def test_variables_of_the_caller_do_not_replace_the_servers() -> None:
    source = "{% for message in messages %}{{ message.content }}{% endfor %}{{ add_generation_prompt }}"
    assert render(source, messages=HI, shoal_tick="x") == "hiTrue"


def test_text_that_looks_like_the_end_of_a_continued_message_is_text() -> None:
    marker = "\ufdd0continue\ufdd1"
    messages = [{"role": "user", "content": marker}, {"role": "assistant", "content": f"{marker}x"}]
    assert ChatTemplate(CHATML, {}).render_open_ended(messages, {}).endswith(f"assistant\n{marker}x")
