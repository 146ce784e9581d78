"""Parsers are chosen by what a chat template says. The excerpts are in the style of the models' own."""

import pytest

from api_server.parsers.catalog import check_catalog, choose_parsers
from api_server.parsers.names import AUTO, ParserNames

QWEN3 = """{%- if tools %}For each function call, return a json object within <tool_call></tool_call> XML tags:
<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{%- endif %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"""
QWEN3_CODER = """{%- if tools %}reply in this format: <tool_call>\n<function=example>\n<parameter=one>\nvalue\n
</parameter>\n</function>\n</tool_call>{%- endif %}"""
LLAMA3 = """<|start_header_id|>system<|end_header_id|>{%- if tools %}Respond in the format
{"name": function name, "parameters": dictionary of argument name and its value}{%- endif %}
{{- '{"name": "' + call.name + '", "parameters": ' }}<|python_tag|>"""
LLAMA4 = """<|header_start|>system<|header_end|>{{- '<|python_start|>' }}{{- '{"name": "' + f.name + '", ' }}
{{- '"parameters": ' }}"""
LLAMA32_PYTHONIC = """<|start_header_id|>you MUST put it in the format of
[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)] "parameters": """


@pytest.mark.parametrize(
    ("excerpt", "tools", "reasoning"),
    [
        (QWEN3, "hermes", "think"),
        (QWEN3_CODER, "qwen3_coder", "none"),
        (LLAMA3, "llama3_json", "none"),
        (LLAMA4, "llama3_json", "none"),
        (LLAMA32_PYTHONIC, "pythonic", "none"),
        ("{{ '<|tool_call_start|>[' ~ name ~ '(' }}", "pythonic", "none"),
        ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", "none"),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}[THINK]{{ thinking }}[/THINK]", "mistral", "mistral"),
        ("{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + f.name}}{{'<think>'}}", "deepseek_v3", "think"),
        ("{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>{{ '<think></think>' }}", "glm45", "think"),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|><think></think>", "kimi_k2", "think"),
        ('{{ "<minimax:tool_call>" }}<invoke name="{{ n }}">{{ "<think>" }}', "minimax_m2", "think"),
        ("<|start|>assistant<|channel|>analysis<|message|> commentary to=functions.", "harmony", "harmony"),
        ("<start_function_call>call:{{ name }}{<escape>", "functiongemma", "none"),
        ("<|tool_call>call:{{ name }}{{ '<|channel>thought' }}", "gemma4", "gemma4"),
        ("<|tool_call|>{{ calls }} Here is my thought process: x Here is my response:", "granite", "granite"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4", "none"),
        ("<|tool_call|>{{ calls }}<|/tool_call|>", "phi4", "none"),
        ('single JSON array: [{"name": "tool_call_name", "arguments": {}}]', "xlam", "none"),
        ("◁think▷", "none", "kimi_vl"),
        ("<seed:think>", "none", "seed_oss"),
        ("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", "none", "none"),
        (None, "none", "none"),
    ],
)
def test_the_template_decides(excerpt: str | None, tools: str, reasoning: str) -> None:
    assert choose_parsers(AUTO, excerpt) == (tools, reasoning)


def test_the_option_wins() -> None:
    assert choose_parsers(ParserNames("none", "auto"), QWEN3) == ("none", "think")
    assert choose_parsers(ParserNames("auto", "none"), QWEN3) == ("hermes", "none")
    assert choose_parsers(ParserNames("xlam", "granite"), QWEN3) == ("xlam", "granite")


def test_every_name_has_its_parser() -> None:
    check_catalog()
