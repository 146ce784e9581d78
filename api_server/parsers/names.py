"""Names of parsers: the values of the options `tool_call_parser` and `reasoning_parser`."""

from typing import Literal, NamedTuple

ToolParserName = Literal[
    "auto",
    "none",
    "deepseek_v3",
    "functiongemma",
    "gemma4",
    "glm45",
    "granite",
    "harmony",
    "hermes",
    "kimi_k2",
    "llama3_json",
    "minimax_m2",
    "mistral",
    "phi4",
    "pythonic",
    "qwen3_coder",
    "xlam",
]
ReasoningParserName = Literal["auto", "none", "gemma4", "granite", "harmony", "kimi_vl", "mistral", "seed_oss", "think"]


class ParserNames(NamedTuple):
    """The two parsers of a model, wanted or chosen."""

    tools: ToolParserName
    reasoning: ReasoningParserName


AUTO = ParserNames("auto", "auto")
NONE = ParserNames("none", "none")
