"""Regular expressions and grammars of callers: limits that hold before the grammar back end sees them.

What is wrong in them is said by the back end, in the engine core, before the answer begins.
"""

import re

from api_server.errors import invalid

MAX_REGEX_CHARS = 8192
MAX_GRAMMAR_CHARS = 64 * 1024
MAX_NESTING = 64
"""Of parentheses; the back end walks them recursively."""

_REGEX_TOKEN = re.compile(r"\\.|\(\?[^:)]?|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]|\^|\$", re.DOTALL)
_GRAMMAR_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]|\broot\b', re.DOTALL)


def check_regex(pattern: str, field: str) -> None:
    """Raises ApiError. A pattern matches the whole output; anchors may stand at its ends, and nowhere else."""
    if not 1 <= len(pattern) <= MAX_REGEX_CHARS:
        raise invalid(f"{field} must have 1 to {MAX_REGEX_CHARS} characters", field)
    depth = 0
    for match in _REGEX_TOKEN.finditer(pattern):
        token = match[0]
        depth = _nesting(token, depth, field)
        is_at_end = match.start() == 0 if token == "^" else match.end() == len(pattern)
        if token in ("^", "$") and not is_at_end:
            raise invalid(f"{field}: {token} is only supported at the ends", field)


def check_grammar_text(text: str, field: str) -> None:
    """Raises ApiError. The notation is GBNF, and `root` is what the output is."""
    if not 1 <= len(text) <= MAX_GRAMMAR_CHARS:
        raise invalid(f"{field} must have 1 to {MAX_GRAMMAR_CHARS} characters", field)
    depth, has_root = 0, False
    for match in _GRAMMAR_TOKEN.finditer(text):
        depth = _nesting(match[0], depth, field)
        has_root = has_root or match[0] == "root"
    if not has_root:
        raise invalid(f"{field} must define root", field)


def _nesting(token: str, depth: int, field: str) -> int:
    depth += token.startswith("(")
    depth -= token == ")"
    if depth > MAX_NESTING:
        raise invalid(f"{field} is nested deeper than {MAX_NESTING} levels", field)
    return depth
