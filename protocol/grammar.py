"""What the output of a request has to look like (structured output), as it travels to the engine core."""

import enum

import msgspec

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of one grammar's text: the coordinator decodes it with the request."""


class GrammarKind(enum.IntEnum):
    """In what language a grammar is written."""

    JSON_SCHEMA = 1
    """Canonical (api_server.json_schema), for JSON on one line."""
    REGEX = 2
    """Matches the whole output."""
    EBNF = 3
    """GBNF, the notation of llama.cpp; the output is a `root`."""
    STRUCTURAL_TAG = 4
    """xgrammar's structural tags: free text with formats in it."""


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A grammar that has not been compiled."""

    kind: GrammarKind
    text: str
    field: str
    """Path of the request field that it comes from: an error names it."""
    starts_after: tuple[int, ...] = ()
    """Token ids: the grammar holds for what follows them in the output (the end of the model's thoughts). Empty: from
    the first token on."""
