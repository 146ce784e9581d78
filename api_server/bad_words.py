"""`bad_words` as token sequences (vLLM's field): each word at the start of a text and after a space."""

from collections.abc import Iterator, Sequence

from api_server.errors import invalid
from api_server.served_model import ServedModel

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256


def check_bad_words(words: Sequence[str]) -> None:
    """Raises ApiError naming the entry."""
    if len(words) > MAX_BAD_WORDS:
        raise invalid(f"bad_words has {len(words)} entries, at most {MAX_BAD_WORDS} are allowed", "bad_words")
    for index, word in enumerate(words):
        if not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
            path = f"bad_words[{index}]"
            raise invalid(f"{path} must have 1 to {MAX_BAD_WORD_CHARS} characters, not only spaces", path)


def bad_words_token_ids(words: Sequence[str], model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """The sequences that must not be completed, none twice.

    A word is banned as the tokenizer writes it: the same letters can come out in other tokens.
    """
    return tuple(dict.fromkeys(_sequences(words, model)))


def _sequences(words: Sequence[str], model: ServedModel) -> Iterator[tuple[int, ...]]:
    for word in words:
        for text in (word.lstrip(), " " + word.lstrip()):
            token_ids = tuple(model.tokenizer.encode(text, add_special_tokens=False))
            if token_ids:  # tokenizers may drop characters, and what cannot be written needs no ban
                yield token_ids
