"""The tools of a chat request: the functions that a model may call (OpenAI API reference, "tools", "tool_choice")."""

import re
from typing import Any

import msgspec

from api_server.errors import ApiError, ErrorKind, invalid
from api_server.parsers.tools import Tools

MAX_TOOLS = 128
"""As with OpenAI."""
MAX_SCHEMA_DEPTH = 64
"""Deepest nesting of a function's parameters; templates and parsers walk them recursively."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

TemplateTool = dict[str, Any]
"""A tool as chat templates expect it: type, function with name, parameters, and description if given."""


class FunctionDefinition(msgspec.Struct, frozen=True):
    """`tools[].function`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    """One entry of `tools`."""

    type: str
    function: FunctionDefinition | None = None


def check_tools(tools: list[ToolDefinition]) -> None:
    """Raises ApiError naming what is wrong."""
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools has {len(tools)} entries, at most {MAX_TOOLS} are allowed", "tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type != "function":
            raise invalid(f"{path}.type must be function", f"{path}.type")
        if tool.function is None:
            raise invalid(f"{path}.function: required", f"{path}.function")
        _check_function(tool.function, f"{path}.function")
        if tool.function.name in names:
            raise invalid(f"{path}.function.name is that of an earlier tool", f"{path}.function.name")
        names.add(tool.function.name)


def _check_function(function: FunctionDefinition, path: str) -> None:
    if not _NAME.fullmatch(function.name):
        raise invalid(f"{path}.name must be 1 to 64 letters, digits, _ or -", f"{path}.name")
    parameters = function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise invalid(f"{path}.parameters.type must be object", f"{path}.parameters.type")
    if not isinstance(parameters.get("properties", {}), dict):
        raise invalid(f"{path}.parameters.properties must be an object", f"{path}.parameters.properties")
    if _is_deeper_than(parameters, MAX_SCHEMA_DEPTH):
        raise invalid(f"{path}.parameters is nested deeper than {MAX_SCHEMA_DEPTH} levels", f"{path}.parameters")


def check_tool_choice(choice: object, has_tools: bool) -> None:
    """Whether a choice can be kept. Raises ApiError."""
    if choice in (None, "none", "auto"):
        return
    if not has_tools:
        raise invalid("tool_choice is only allowed when tools are given", "tool_choice")
    if choice == "required" or isinstance(choice, dict):
        message = "this server cannot force a call yet: tool_choice must be auto or none"
        raise ApiError(ErrorKind.NOT_SUPPORTED, message, "tool_choice")
    raise invalid("tool_choice must be none, auto, required or an object that names a function", "tool_choice")


def template_tools(tools: list[ToolDefinition]) -> list[TemplateTool]:
    """The tools as the chat template gets them. A function without parameters has an empty object of them."""
    return [
        {"type": "function", "function": _template_function(tool.function)}
        for tool in tools
        if tool.function is not None
    ]


def _template_function(function: FunctionDefinition) -> dict[str, Any]:
    described = {} if function.description is None else {"description": function.description}
    return {"name": function.name, **described, "parameters": _NO_PARAMETERS | (function.parameters or {})}


def parser_tools(tools: list[ToolDefinition]) -> Tools:
    """The tools as parsers need them."""
    functions = [tool.function for tool in tools if tool.function is not None]
    return Tools({function.name: function.parameters or {} for function in functions})


def _is_deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    while level and depth > 0:
        level = [inner for outer in level for inner in _children(outer)]
        depth -= 1
    return bool(level)


def _children(value: Any) -> list[Any]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [child for child in inner if isinstance(child, dict | list)]
