"""Ids of tool calls, by which a caller's tool messages refer to them."""

import secrets
import string

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """As OpenAI writes them; 96 random bits."""
    return f"call_{secrets.token_hex(12)}"


def new_short_call_id() -> str:
    """Nine letters or digits, as Mistral's templates insist on; 53 random bits."""
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(9))
