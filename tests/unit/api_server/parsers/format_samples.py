"""The same three calls as each model would write them, for tests that hold for all formats."""

from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One format."""

    tools: str
    text: str
    """Calls get_weather(city="Åse \\"x\\" {", days=3), now() and run(cmd=...), in this order."""
    before: str = ""
    """Text that the format allows in front of calls."""


CMD = "mkdir -p x/{a,b ; echo '}}' \\ \"q\"\n\t</tool_call>\u2028🫠"
CITY = 'Åse "x" {'
CALLS: list[tuple[str, Any]] = [("get_weather", {"city": CITY, "days": 3}), ("now", {}), ("run", {"cmd": CMD})]

_CITY_JSON = '{"city": "Åse \\"x\\" {", "days": 3}'
_CMD_JSON = '{"cmd": "mkdir -p x/{a,b ; echo \'}}\' \\\\ \\"q\\"\\n\\t</tool_call>\u2028🫠"}'
_OBJECTS = (
    f'{{"name": "get_weather", "arguments": {_CITY_JSON}}}',
    '{"name": "now", "arguments": {}}',
    f'{{"name": "run", "arguments": {_CMD_JSON}}}',
)
_ARRAY = f"[{', '.join(_OBJECTS)}]"
_NAMED = (("get_weather", _CITY_JSON), ("now", "{}"), ("run", _CMD_JSON))


def _gemma(quote: str, start: str, end: str) -> str:
    calls = (
        f"call:get_weather{{city:{quote}{CITY}{quote},days:3}}",
        "call:now{}",
        f"call:run{{cmd:{quote}{CMD}{quote}}}",
    )
    return "".join(f"{start}{call}{end}" for call in calls)


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")

SAMPLES = {
    "hermes": Sample("hermes", "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in _OBJECTS), "Well."),
    "qwen3_coder": Sample(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n"
        f"<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
        f"<tool_call>\n<function=run>\n<parameter=cmd>\n{CMD}\n</parameter>\n</function>\n</tool_call>",
        "Well.",
    ),
    "qwen3_coder naked": Sample(
        "qwen3_coder",
        f"<function=get_weather><parameter=city>{CITY}</parameter><parameter=days>3</parameter></function>"
        f"<function=now></function><function=run><parameter=cmd>{CMD}</parameter></function>",
        "Well.",
    ),
    "glm45": Sample(
        "glm45",
        "<tool_call>get_weather\n"
        f"<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n<tool_call>now\n</tool_call>"
        f"<tool_call>run<arg_key>cmd</arg_key><arg_value>{CMD}</arg_value></tool_call>",
        "Well.",
    ),
    "minimax_m2": Sample(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        f'<parameter name="city">{CITY}</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n'
        f'<invoke name="run">\n<parameter name="cmd">{CMD}</parameter>\n</invoke>\n</minimax:tool_call>',
        "Well.",
    ),
    "llama3": Sample("llama3_json", "; ".join(_OBJECTS).replace("arguments", "parameters")),
    "llama3 tag": Sample("llama3_json", "<|python_tag|>" + "; ".join(_OBJECTS), "Well."),
    "pythonic": Sample(
        "pythonic",
        "[get_weather(city='Åse \"x\" {', days=3), now(), "
        'run(cmd="mkdir -p x/{a,b ; echo \'}}\' \\\\ \\"q\\"\\n\\t</tool_call>\u2028🫠")]',
    ),
    "mistral": Sample("mistral", f"[TOOL_CALLS]{_ARRAY}", "Well."),
    "mistral args": Sample("mistral", "".join(f"[TOOL_CALLS]{name}[ARGS]{args}" for name, args in _NAMED), "Well."),
    "mistral plain": Sample("mistral", "".join(f"[TOOL_CALLS]{name}{args}" for name, args in _NAMED), "Well."),
    "deepseek_v3": Sample(
        "deepseek_v3",
        _DEEPSEEK[0]
        + "\n".join(f"{_DEEPSEEK[1]}function{_DEEPSEEK[2]}{n}\n```json\n{a}\n```{_DEEPSEEK[3]}" for n, a in _NAMED)
        + "<｜tool▁calls▁end｜>",
        "Well.",
    ),
    "deepseek_v31": Sample(
        "deepseek_v3",
        _DEEPSEEK[0]
        + "".join(f"{_DEEPSEEK[1]}{n}{_DEEPSEEK[2]}{a}{_DEEPSEEK[3]}" for n, a in _NAMED)
        + "<｜tool▁calls▁end｜>",
        "Well.",
    ),
    "kimi_k2": Sample(
        "kimi_k2",
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{args}<|tool_call_end|>"
            for index, (name, args) in enumerate(_NAMED)
        )
        + "<|tool_calls_section_end|>",
        "Well.",
    ),
    "harmony": Sample(
        "harmony",
        "<|start|>assistant".join(
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{args}<|call|>"
            for name, args in _NAMED
        ),
        "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant",
    ),
    "harmony role": Sample(
        "harmony",
        "<|start|>assistant".join(
            f" to=functions.{name}<|channel|>commentary json<|message|>{args}<|call|>" for name, args in _NAMED
        ),
    ),
    "functiongemma": Sample(
        "functiongemma", _gemma("<escape>", "<start_function_call>", "<end_function_call>"), "Well."
    ),
    "gemma4": Sample("gemma4", _gemma('<|"|>', "<|tool_call>", "<tool_call|>"), "Well."),
    "granite": Sample("granite", f"<|tool_call|>{_ARRAY}", "Well."),
    "granite 20b": Sample("granite", "".join(f"<function_call> {call}\n" for call in _OBJECTS), "Well."),
    "xlam": Sample("xlam", _ARRAY),
    "xlam fenced": Sample("xlam", f"```json\n{_ARRAY}\n```"),
    "phi4": Sample("phi4", f"<|tool_call|>{_ARRAY}<|/tool_call|>", "Well."),
    "phi4 functools": Sample("phi4", f"functools{_ARRAY}", "Well."),
}
