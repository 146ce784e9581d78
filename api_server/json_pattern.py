"""Whether a `pattern` of a JSON Schema can be enforced.

A pattern may match anywhere in a string (JSON Schema Validation, section 6.3.3). The grammar back end lets it match
the whole string, which is narrower and therefore right, but it passes over assertions that it does not know, takes
anchors for nothing wherever they stand, and writes characters down as they are that JSON would want escaped. Patterns
with such things are refused.
"""

import re

MAX_PATTERN_CHARS = 1024

_TOKEN = re.compile(r"\\[ux][0-9a-fA-F]*|\\.|\(\?[:=!<P]?[=!]?|[\s\S]")
_SAFE_ESCAPES = frozenset("dDwWsS") | frozenset("/-.*+?()[]{}|^$")
_CODE_POINT = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_GROUP_STARTS = ("(", "(?:")


def why_not_enforced(pattern: str) -> str | None:
    """What of the pattern cannot be enforced; None for one that can."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"longer than {MAX_PATTERN_CHARS} characters"
    tokens = _TOKEN.findall(pattern)
    inside: str | None = None
    """The start of the class that the token is in."""
    depth = 0
    for index, token in enumerate(tokens):
        if inside is not None:
            if token == "]":
                inside = None
            elif inside == "[" and not _is_plain(token):
                return _quoted(token)
        elif token == "[":
            inside = "[^" if tokens[index + 1 : index + 2] == ["^"] else "["
        elif token.startswith("("):
            if token not in _GROUP_STARTS:
                return _quoted(token)
            depth += 1
        elif token == ")":
            depth -= 1
        elif token in "^$":
            if depth or not _is_at_border(tokens, index):
                return f"{token} other than at the ends"
        elif not _is_plain(token):
            return _quoted(token)
    return None


def _is_plain(token: str) -> bool:
    """Whether it matches only characters that JSON writes as they are, or a class that is kept to those."""
    if len(token) == 1:
        return ord(token) >= 0x20 and token not in '"\\'
    code_point = _CODE_POINT.fullmatch(token)
    if code_point:
        return _is_plain(chr(int(code_point[1] or code_point[2], 16)))
    return token[1:] in _SAFE_ESCAPES


def _is_at_border(tokens: list[str], index: int) -> bool:
    """Whether an anchor stands where it holds anyway, since an alternative matches the whole string."""
    if tokens[index] == "^":
        return index == 0 or tokens[index - 1] == "|"
    return index == len(tokens) - 1 or tokens[index + 1] == "|"


def _quoted(token: str) -> str:
    return "a character that JSON escapes" if not token.isprintable() or token in '"\\\\' else token
