"""Single formats: what models write beside the rule, and what it becomes."""

import pytest
from parsed_answer import Answer, answer_of, decoded, make_parser, parse, put_together

from api_server.parsers.events import CallArguments, CallBegan, CallEnded, Content

HERMES_NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def call(name: str, arguments: str, content: str = "") -> Answer:
    return Answer(content, "", ((name, arguments),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', call("f", "{}")),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', call("f", "{}")),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', call("f", '{"a": 1}')),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '{"a": 1}')),
        ('<tool_call>{"type": "function", "name": "f", "arguments": {"a": []}}</tool_call>', call("f", '{"a": []}')),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', call("f", '{"a": 1}')),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', call("f", '{"a": 1}')),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}} and more', call("f", '{"a": 1}', " and more")),
        ('<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>', call("f", '{"a": 1}')),
        ("a <tool_call> tag", Answer("a <tool_call> tag")),
        ("<tool_call>{}</tool_call>", Answer("<tool_call>{}</tool_call>")),
        ('<tool_call>{"name": 5}</tool_call>', Answer('<tool_call>{"name": 5}</tool_call>')),
        ('<tool_call>{"name": "\\ud800"}', Answer('<tool_call>{"name": "\\ud800"}')),
        (f"the <tool_call> tag: {HERMES_NOW}", call("now", "{}", "the <tool_call> tag:")),
        (f"  {HERMES_NOW}  ", call("now", "{}")),
        (f"before\n{HERMES_NOW}\nafter\n", call("now", "{}", "before\nafter\n")),
    ],
)
def test_json_calls(text: str, expected: Answer) -> None:
    assert answer_of(make_parser("hermes"), text) == expected
    assert put_together(parse(make_parser("hermes"), text)) == expected


def test_what_json_forbids_inside_strings_is_repaired() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\ny\tz\\d \\\' \\u00e9 \\\\"}}</tool_call>'
    assert decoded(answer_of(make_parser("hermes"), text)) == [("f", {"a": "x\ny\tz\\d ' é \\"})]


def test_arguments_come_as_they_are_written() -> None:
    parser = make_parser("hermes")
    assert parser.feed('<tool_call>{"name": "f", "argu') == []
    assert parser.feed('ments": {') == [CallBegan("f", "c1", 0), CallArguments("{", 0)]
    assert parser.feed('"a": "long te') == [CallArguments('"a": "long te', 0)]
    assert parser.feed('xt"}') == [CallArguments('xt"}', 0)]
    assert parser.feed("}") == [CallEnded()]
    assert parser.feed("\n</tool_call>") == []
    assert parser.feed('<tool_call>{"name": "g"}') == [CallBegan("g", "c2", 1), CallArguments("{}", 1), CallEnded()]


@pytest.mark.parametrize("name", ["llama3_json", "xlam", "pythonic"])
@pytest.mark.parametrize(
    "text", ['{"name": "Ada", "parameters": {"a": 1}}', "[1, 2]", "[link](url)", '["a"]', "[f(a=1)]", "{", "", "[now"]
)
def test_an_answer_that_only_looks_like_bare_calls_is_content(name: str, text: str) -> None:
    assert answer_of(make_parser(name), text) == Answer(text)


def test_bare_calls_of_functions_that_were_offered_are_calls() -> None:
    assert answer_of(make_parser("llama3_json"), '{"name": "now", "parameters": {}}') == call("now", "{}")
    assert answer_of(make_parser("pythonic"), "[now()] done") == call("now", "{}", " done")
    assert answer_of(make_parser("xlam"), '```json\n[{"name": "now"}]\n```\n') == call("now", "{}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("a=1, b='x', c=None", {"a": 1, "b": "x", "c": None}),
        ("d=[True, -2.5], e={'k': (1,)}", {"d": [True, -2.5], "e": {"k": [1]}}),
        ("a=true, b=null, c=false", {"a": True, "b": None, "c": False}),
        ('a="it\'s (x", b=")]"', {"a": "it's (x", "b": ")]"}),
    ],
)
def test_pythonic_literals(arguments: str, expected: object) -> None:
    assert decoded(answer_of(make_parser("pythonic"), f"[now({arguments})]")) == [("now", expected)]


@pytest.mark.parametrize("arguments", ["1", "a=f()", "a=b", "**{'a': 1}", "a=b'x'", "a=...", "a=1j", "a=1 a=2"])
def test_pythonic_calls_without_literal_keywords_are_content(arguments: str) -> None:
    text = f"[now({arguments})]"
    assert answer_of(make_parser("pythonic"), text) == Answer(text)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("<parameter=city>\n\n</parameter>", '{"city": ""}'),
        ("<parameter=city>\n\nx\n\n</parameter>", '{"city": "\\nx\\n"}'),
        ("<parameter=city>5</parameter>", '{"city": "5"}'),
        ("<parameter=days>\n12\n</parameter>", '{"days": 12}'),
        ("<parameter=days>many</parameter>", '{"days": "many"}'),
        ("<parameter=exact>True</parameter>", '{"exact": true}'),
        ("<parameter=options>{'a': None}</parameter>", '{"options": {"a":null}}'),
        ('<parameter=options>{"a": {"b": {}}}</parameter>', '{"options": {"a": {"b": {}}}}'),
        ("<parameter=city>use </parameter> twice</parameter>", '{"city": "use </parameter> twice"}'),
        ("<parameter=days>1</parameter><parameter=city>x</parameter>", '{"days": 1, "city": "x"}'),
    ],
)
def test_tagged_values(value: str, arguments: str) -> None:
    text = f"<tool_call><function=get_weather>{value}</function></tool_call>"
    assert answer_of(make_parser("qwen3_coder"), text) == call("get_weather", arguments)
    assert put_together(parse(make_parser("qwen3_coder"), text)) == call("get_weather", arguments)


def test_a_string_value_comes_as_it_is_written() -> None:
    parser = make_parser("qwen3_coder")
    opening = parser.feed("<function=get_weather>\n<parameter=city>\n")
    assert opening == [CallBegan("get_weather", "c1", 0), CallArguments('{"city": "', 0)]
    assert parser.feed("Os") == [CallArguments("Os", 0)]
    assert parser.feed('lo "x"\n') == [CallArguments('lo \\"x\\"', 0)]
    assert parser.feed("</parameter") == []
    assert parser.feed(">\n</function>") == [CallArguments('"}', 0), CallEnded()]


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_models_that_fall_back_to_json_are_understood(name: str) -> None:
    assert answer_of(make_parser(name), HERMES_NOW) == call("now", "{}")
    assert answer_of(make_parser(name), "a <tool_call> tag") == Answer("a <tool_call> tag")


def test_kimis_own_ids_are_kept_unless_they_repeat() -> None:
    begin, arguments = "<|tool_call_begin|>", "<|tool_call_argument_begin|>{}<|tool_call_end|>"
    text = f"{begin}functions.f:3{arguments}{begin}functions.f:3{arguments}{begin}odd{arguments}"
    events = parse(make_parser("kimi_k2"), [text])
    began = [event for event in events if isinstance(event, CallBegan)]
    assert [(event.name, event.call_id) for event in began] == [("f", "functions.f:3"), ("f", "c1"), ("odd", "c2")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS]now[ARGS]"),
        ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|><|call|>"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>null"),
    ],
)
def test_arguments_that_are_left_out_are_an_empty_object(name: str, text: str) -> None:
    # BR-c07
    assert answer_of(make_parser(name), text) == call("now", "{}")


def test_a_call_without_arguments_after_one_with_some_has_an_empty_object() -> None:
    # BR-c03
    text = '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]'
    assert answer_of(make_parser("mistral"), text).calls == (("f", '{"a": 1}'), ("now", "{}"))


def test_a_value_that_is_nested_too_deeply_ends_the_call() -> None:
    for bracket in ("[", "{a:"):
        answer = answer_of(make_parser("gemma4"), "<|tool_call>call:f{a:" + bracket * 5000)
        assert [name for name, _ in answer.calls] == ["f"]
        assert len(answer.content) > 4000


def test_mistrals_ids_are_kept() -> None:
    [began, *_] = parse(make_parser("mistral"), ["[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}"])
    assert began == CallBegan("f", "abc123XYZ", 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{a:1,b:true,c:null,d:<|"|>x, y: {z}<|"|>}', {"a": 1, "b": True, "c": None, "d": "x, y: {z}"}),
        ('{a:{b:[1,<|"|>x<|"|>,{c:2}]},d:[]}', {"a": {"b": [1, "x", {"c": 2}]}, "d": []}),
        ("{a:word}", {"a": "word"}),
        ('{<|"|>a<|"|>:1}', {"a": 1}),
    ],
)
def test_gemma_values(arguments: str, expected: object) -> None:
    answer = answer_of(make_parser("gemma4"), f"<|tool_call>call:f{arguments}<tool_call|>")
    assert (decoded(answer), answer.content) == ([("f", expected)], "")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral", "kimi_k2", "harmony", "gemma4"])
def test_a_head_that_the_length_limit_cuts_off_is_left_out(name: str) -> None:
    heads = {
        "hermes": '<tool_call>\n{"name": "get_',
        "qwen3_coder": "<tool_call>\n<function=get",
        "mistral": "[TOOL_CALLS]get_",
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get",
        "harmony": "<|channel|>commentary to=functions.get",
        "gemma4": "<|tool_call>call:ge",
    }
    text = ("<|channel|>final<|message|>Hi<|end|>" if name == "harmony" else "Hi\n") + heads[name]
    assert answer_of(make_parser(name), text, is_cut_off=True) == Answer("Hi")


def test_half_a_marker_at_the_end_is_text() -> None:
    assert parse(make_parser("hermes"), ["a <tool_"], is_cut_off=True) == [Content("a <tool_")]
