"""What a chat template expects of messages, where templates differ: found by reading it and by trying it once."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

TemplateMessage = dict[str, Any]
"""A message as chat templates expect it: role, content (a string), and name, tool_calls, tool_call_id, thoughts."""

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_PROBE = {"probe_key": "probe_value"}

Render = Callable[[Sequence[TemplateMessage]], str | None]
"""Renders messages; None when the template cannot."""


class TemplateStyle(msgspec.Struct, frozen=True):
    """One template's ways."""

    knows_developer_role: bool = False
    """Whether it handles the role "developer" itself; for others such messages become "system"."""
    knows_tools: bool = False
    """Whether it shows tools to the model."""
    has_text_arguments: bool = False
    """Whether it wants a call's arguments as JSON text, not as an object."""
    reasoning_keys: tuple[str, ...] = ()
    """Where it looks for the thoughts of earlier answers."""
    variables: frozenset[str] = frozenset()
    """Which of the variables that turn thinking on and off it reads."""


def template_style(source: str, render: Render) -> TemplateStyle:
    """The style of the template with this source."""
    words = frozenset(re.findall(r"\w+", source))
    return TemplateStyle(
        knows_developer_role="developer" in words,
        knows_tools="tools" in words,
        has_text_arguments="arguments" in words and _wants_text(render),
        reasoning_keys=tuple(key for key in _REASONING_KEYS if key in words),
        variables=frozenset({"reasoning_effort", "enable_thinking", "thinking"} & words),
    )


def _wants_text(render: Render) -> bool:
    """Objects suit most templates: they iterate over them, or write them as JSON. Some join them to text instead."""
    as_object = render(_conversation(_PROBE))
    if as_object is not None and "'probe_key'" not in as_object:
        return False
    as_text = render(_conversation(msgspec.json.encode(_PROBE).decode()))
    return as_text is not None and '"probe_key"' in as_text


def _conversation(arguments: object) -> list[TemplateMessage]:
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "probe0000", "type": "function", "function": function}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "probe0000", "name": "probe"},
    ]
