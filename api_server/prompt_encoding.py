"""Prompt text to token ids, for as much text as the model can have use for."""

from api_server.errors import ApiError, ErrorKind
from api_server.served_model import ServedModel

MOST_TRUNCATED_CONTEXTS = 16
"""A text that does not have to fit the context may have as many times its tokens."""


async def encode_prompt(model: ServedModel, text: str, add_special_tokens: bool, most_contexts: int = 1) -> list[int]:
    """The token ids of the text. Raises ApiError, before it is encoded, for one that cannot fit so many contexts.

    Encoding takes a second per megabyte; 16 MiB of text sent to a model of 8,192 tokens took 13 s to be refused.
    """
    least = model.tokenizer.least_tokens(text)
    if least > model.card.max_model_len * most_contexts:
        limit = f"this model's context length is {model.card.max_model_len} tokens"
        message = f"{limit}; the prompt has at least {least} tokens"
        raise ApiError(ErrorKind.CONTEXT_LENGTH, message)
    return await model.tokenizer.encode_async(text, add_special_tokens)
