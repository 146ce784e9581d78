"""A Jinja environment in which a chat template can neither reach Python nor run or grow without end.

A template comes from a model folder: trusted to be about the model, not to be correct for every conversation
that callers send. Jinja's immutable sandbox keeps it from attributes and mutation. What the sandbox leaves open
is closed here: each turn of a loop and each macro call looks at the clock (calls added to the syntax tree), the
operators that build long values check the length of their result, and the output is counted while it is made.
"""

import json
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import TemplateRuntimeError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

RENDER_LIMIT_S = 5.0
"""Most seconds that one rendering may take; ordinary templates take under a millisecond per ten messages."""
MAX_RENDERED_CHARS = 32 * 1024 * 1024
"""Twice the largest request body in characters: longer output is a template that repeats its input."""
MAX_SEQUENCE = 1_000_000
"""Longest list that `*` may build."""
MAX_EXPONENT = 64

_TICK = "shoal_tick"
_CONCAT = "shoal_concat"


class Budget:
    """The time that one rendering has left."""

    def __init__(self, clock: Callable[[], float], limit_s: float = RENDER_LIMIT_S) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._deadline_s = clock() + limit_s

    def tick(self) -> str:
        """Raises TemplateRuntimeError when the time is up."""
        if self._clock() > self._deadline_s:
            raise TemplateRuntimeError(f"the chat template takes longer than {self._limit_s:g} s")
        return ""

    def names(self) -> dict[str, Any]:
        """What a compiled template expects in its variables to be able to call `tick`."""
        return {_TICK: self.tick}


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """The environment of chat templates, with what Hugging Face templates may use (transformers' chat templating)."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"+", "*", "**"})  # type: ignore[misc]

    def __init__(self, strftime_now: Callable[[str], str]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = strftime_now
        self.globals[_CONCAT] = _concat

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compiles with the clock checks added. Raises jinja2.TemplateSyntaxError."""
        tree = _AddLimits().visit(self.parse(source))
        code = self.compile(tree, filename="<chat template>")
        return self.template_class.from_code(self, code, self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuses the operations whose result is out of proportion to their operands."""
        if operator == "*":
            _check_product(left, right)
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= MAX_EXPONENT):
            raise TemplateRuntimeError("the chat template computes too large a power")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str):
            _check_length(len(result))
        return result


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks an answer for training; here its body is rendered as it is."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _AddLimits(NodeTransformer):
    """Adds a clock check to each loop turn and macro call, and a length check to `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.body.insert(0, _tick_statement(node.lineno))
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node.body.insert(0, _tick_statement(node.lineno))
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_CONCAT, "load"), node.nodes, [], None, None, lineno=node.lineno)


def _tick_statement(lineno: int) -> nodes.ExprStmt:
    call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None, lineno=lineno)
    return nodes.ExprStmt(call, lineno=lineno)


def _check_length(chars: int) -> None:
    if chars > MAX_RENDERED_CHARS:
        raise TemplateRuntimeError(f"the chat template makes more than {MAX_RENDERED_CHARS} characters")


def _check_product(left: Any, right: Any) -> None:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str) and isinstance(count, int):
            _check_length(len(sequence) * count)
        elif isinstance(sequence, list | tuple) and isinstance(count, int) and len(sequence) * count > MAX_SEQUENCE:
            raise TemplateRuntimeError(f"the chat template makes a list of more than {MAX_SEQUENCE} entries")


def _concat(*parts: Any) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would put \u003c into prompts.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
