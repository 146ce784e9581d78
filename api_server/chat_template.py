"""A model's chat template: messages in, prompt text out."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from api_server.template_sandbox import MAX_RENDERED_CHARS, RENDER_LIMIT_S, Budget, SandboxedTemplates
from api_server.template_style import template_style
from protocol.errors import ProtocolError

_MARKER = "\ufdd0continue\ufdd1"
"""Put behind the message that is to be continued, so that the end of its text is found in the prompt. Unicode
noncharacters: meant for internal use, and the last occurrence counts, so that a caller gains nothing by it."""

MAX_MESSAGE_CHARS = 300
"""Longest message of a template's exception that is handed to the caller."""

RESERVED_NAMES = frozenset({"messages", "add_generation_prompt", "tools", "documents"})
"""Variables that the server sets; chat_template_kwargs must not."""


class TemplateRefused(Exception):
    """The template cannot render these messages; the text says why and is meant for the caller."""


class ChatTemplate:
    """A compiled template with the model's special tokens. Immutable; may be used by several threads at once."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
        limit_s: float = RENDER_LIMIT_S,
    ) -> None:
        """Compiles the source. Raises ProtocolError when it is not Jinja (the card is at fault)."""
        environment = SandboxedTemplates(strftime_now=lambda layout: now().strftime(layout))
        try:
            self._template = environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise ProtocolError(f"chat template, line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)
        self._clock = clock
        self._limit_s = limit_s
        self.style = template_style(source, self._try_to_render)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text. `kwargs` are further variables (chat_template_kwargs). Raises TemplateRefused."""
        budget = Budget(self._clock, self._limit_s)
        variables = {
            **self._special_tokens,
            "documents": None,
            **kwargs,
            **budget.names(),
            "tools": tools,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._collect(variables, budget)
        except jinja2.TemplateError as error:
            raise TemplateRefused(_shorten(error.message or "chat template error")) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise TemplateRefused("the chat template cannot render these messages") from error

    def render_open_ended(
        self,
        messages: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text up to the end of the last message's content (a string). Raises TemplateRefused."""
        last = {**messages[-1], "content": messages[-1]["content"] + _MARKER}
        text, found, _ = self.render([*messages[:-1], last], False, kwargs, tools).rpartition(_MARKER)
        if not found:
            raise TemplateRefused("the chat template leaves out the last message, which is to be continued")
        return text

    def _try_to_render(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return self.render(messages, True, {})
        except TemplateRefused:
            return None

    def _collect(self, variables: dict[str, Any], budget: Budget) -> str:
        parts = []
        chars = 0
        for part in self._template.generate(variables):
            budget.tick()
            chars += len(part)
            if chars > MAX_RENDERED_CHARS:
                raise TemplateRefused(f"the prompt has more than {MAX_RENDERED_CHARS} characters")
            parts.append(part)
        return "".join(parts)


def _shorten(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + "..."
