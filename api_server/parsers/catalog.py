"""All parsers by name, and the rules that choose them from a model's chat template."""

from collections.abc import Callable
from typing import NamedTuple, get_args

import msgspec

from api_server.parsers import gemma, json_formats, named_calls, pythonic, tagged_calls, thoughts
from api_server.parsers.names import ParserNames, ReasoningParserName, ToolParserName
from api_server.parsers.source import Source, Steps
from api_server.parsers.thoughts import ThinkMarkers
from api_server.parsers.tools import Tools

ToolGrammar = Callable[[Source, Tools], Steps[None]]


class ToolFormat(msgspec.Struct, frozen=True):
    """How a model writes tool calls."""

    grammar: ToolGrammar
    starts: tuple[str, ...]
    """Markers that a call begins with."""
    markers: tuple[str, ...]
    """All markers; where they are special tokens they must reach the parser."""
    has_short_ids: bool = False
    """Call ids must be nine letters or digits: the template refuses others in later turns."""


def _json(markers: json_formats.JsonMarkers) -> ToolFormat:
    return ToolFormat(json_formats.JsonGrammar(markers), markers.starts, markers.all)


def _tagged(tags: tagged_calls.Tags) -> ToolFormat:
    return ToolFormat(tagged_calls.TaggedGrammar(tags), tags.starts, tags.all)


def _gemma(markers: gemma.GemmaMarkers) -> ToolFormat:
    return ToolFormat(gemma.GemmaGrammar(markers), (markers.start,), markers.all)


TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": _json(json_formats.HERMES),
    "qwen3_coder": _tagged(tagged_calls.QWEN3_CODER),
    "llama3_json": _json(json_formats.LLAMA3),
    "pythonic": ToolFormat(pythonic.pythonic, pythonic.STARTS, pythonic.STARTS + pythonic.ENDS),
    "mistral": ToolFormat(
        named_calls.mistral,
        named_calls.MISTRAL_STARTS,
        named_calls.MISTRAL_STARTS + named_calls.MISTRAL_SEPARATORS,
        has_short_ids=True,
    ),
    "deepseek_v3": ToolFormat(
        named_calls.deepseek,
        named_calls.DEEPSEEK_STARTS,
        (*named_calls.DEEPSEEK_STARTS, *named_calls.DEEPSEEK_ENDS, named_calls.DEEPSEEK_SEPARATOR),
    ),
    "glm45": _tagged(tagged_calls.GLM),
    "kimi_k2": ToolFormat(
        named_calls.kimi,
        named_calls.KIMI_STARTS,
        (*named_calls.KIMI_STARTS, *named_calls.KIMI_ENDS, named_calls.KIMI_SEPARATOR),
    ),
    "minimax_m2": _tagged(tagged_calls.MINIMAX_M2),
    "functiongemma": _gemma(gemma.FUNCTION_GEMMA),
    "gemma4": _gemma(gemma.GEMMA4),
    "granite": _json(json_formats.GRANITE),
    "xlam": _json(json_formats.XLAM),
    "phi4": _json(json_formats.PHI4),
}
"""All but harmony, which divides an answer by itself."""

THINK_MARKERS: dict[str, ThinkMarkers] = {
    "think": thoughts.THINK,
    "mistral": thoughts.MISTRAL,
    "gemma4": thoughts.GEMMA4,
    "granite": thoughts.GRANITE,
    "kimi_vl": thoughts.KIMI_VL,
    "seed_oss": thoughts.SEED_OSS,
}
"""All but harmony."""


class _Rule(NamedTuple):
    name: str
    excerpts: tuple[str, ...]
    """All of these stand in the template."""


_TOOL_RULES = (
    # The first that fits counts: what names one model alone comes before markers that several share.
    _Rule("harmony", ("<|channel|>", "commentary")),
    _Rule("gemma4", ("<|tool_call>",)),
    _Rule("functiongemma", ("<start_function_call>",)),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("kimi_k2", ("<|tool_call_argument_begin|>",)),
    _Rule("deepseek_v3", ("<｜tool▁call▁begin｜>",)),
    _Rule("glm45", ("<arg_key>",)),
    _Rule("qwen3_coder", ("<function=", "<parameter=")),
    _Rule("xlam", ('[{"name": "tool_call_name"',)),
    _Rule("mistral", ("[TOOL_CALLS]",)),
    _Rule("phi4", ("<|tool_call|>", "<|/tool_call|>")),
    _Rule("phi4", ("functools[",)),
    _Rule("phi4", ("<|tool|>", "<|/tool|>")),
    _Rule("granite", ("<|tool_call|>",)),
    _Rule("granite", ("<function_call>",)),
    _Rule("pythonic", ("<|tool_call_start|>",)),
    _Rule("pythonic", ("[func_name1(",)),
    _Rule("hermes", ("<tool_call>",)),
    _Rule("llama3_json", ('"parameters": ', "<|start_header_id|>")),
    _Rule("llama3_json", ('"parameters": ', "<|header_start|>")),
)

_REASONING_RULES = (
    _Rule("harmony", ("<|channel|>", "analysis")),
    _Rule("gemma4", ("<|channel>",)),
    _Rule("mistral", ("[THINK]",)),
    _Rule("kimi_vl", ("◁think▷",)),
    _Rule("seed_oss", ("<seed:think>",)),
    _Rule("granite", ("Here is my thought process:",)),
    _Rule("think", ("</think>",)),
    _Rule("think", ("<think>",)),
)


def choose_parsers(wanted: ParserNames, template: str | None) -> ParserNames:
    """ "auto" replaced by what the template says; "none" where it says nothing."""
    source = template or ""
    tools = _first_fit(_TOOL_RULES, source) if wanted.tools == "auto" else wanted.tools
    reasoning = _first_fit(_REASONING_RULES, source) if wanted.reasoning == "auto" else wanted.reasoning
    return ParserNames(msgspec.convert(tools, ToolParserName), msgspec.convert(reasoning, ReasoningParserName))


def _first_fit(rules: tuple[_Rule, ...], template: str) -> str:
    return next((rule.name for rule in rules if all(excerpt in template for excerpt in rule.excerpts)), "none")


def check_catalog() -> None:
    """Whether each name that can be chosen has its parser. Called by tests."""
    assert set(TOOL_FORMATS) | {"auto", "none", "harmony"} == set(get_args(ToolParserName))
    assert set(THINK_MARKERS) | {"auto", "none", "harmony"} == set(get_args(ReasoningParserName))
