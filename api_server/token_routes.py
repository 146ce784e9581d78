"""`POST /tokenize` and `POST /detokenize`: texts and messages to token ids and back (vLLM's routes and shapes)."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api_server.chat import render_prompt
from api_server.chat_schema import parse_chat
from api_server.completion_schema import check_token_ids
from api_server.disconnect import cancel_on_disconnect
from api_server.generation_backend import GenerationBackend
from api_server.json_body import Fields, check_headers, parse, split_fields
from api_server.prompt_encoding import MOST_TRUNCATED_CONTEXTS, encode_prompt
from api_server.served_model import ServedModel
from api_server.uploads import Uploads

_encoder = msgspec.json.Encoder()


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text; with `messages` instead of `prompt` the fields of a chat request that shape its prompt count."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenStrings(msgspec.Struct, kw_only=True):
    """What /tokenize reads of a chat request besides its prompt."""

    return_token_strs: bool = False


class Tokens(msgspec.Struct, frozen=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """Names in the vocabulary, not pieces of text."""


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


class Text(msgspec.Struct, frozen=True):
    """Answer of /detokenize."""

    prompt: str
    """Special tokens by their names; incomplete characters as U+FFFD."""


class TokenRoutes:
    """Handlers over one backend; nothing reaches an engine core."""

    def __init__(self, backend: GenerationBackend, uploads: Uploads) -> None:
        self._backend = backend
        self._uploads = uploads

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize. Raises ApiError, TemplateRefused, UnknownModel, NoModel."""
        check_headers(request.headers)
        async with self._uploads.body(request) as body:
            fields = split_fields(body)
            work = self._tokenize_chat(fields) if "messages" in fields else self._tokenize_text(fields)
            return _json(await cancel_on_disconnect(request.receive, work))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize. Raises ApiError, UnknownModel, NoModel."""
        check_headers(request.headers)
        async with self._uploads.body(request) as body:
            asked = parse(split_fields(body), DetokenizeRequest, {})
        model = await self._backend.model(asked.model)
        check_token_ids(asked.tokens, "tokens", model.card.vocab_size)
        return _json(Text(model.tokenizer.decode(asked.tokens)))

    async def _tokenize_text(self, fields: Fields) -> Tokens:
        asked = parse(fields, TokenizeRequest, {})
        model = await self._backend.model(asked.model)
        adds_special_tokens = asked.add_special_tokens and model.card.adds_special_tokens
        token_ids = await encode_prompt(model, asked.prompt, adds_special_tokens, MOST_TRUNCATED_CONTEXTS)
        return _tokens(model, token_ids, asked.return_token_strs)

    async def _tokenize_chat(self, fields: Fields) -> Tokens:
        asked = parse_chat(fields)
        model = await self._backend.model(asked.model)
        text = await render_prompt(asked, model)
        token_ids = await encode_prompt(model, text, asked.add_special_tokens, MOST_TRUNCATED_CONTEXTS)
        return _tokens(model, token_ids, parse(fields, TokenStrings, {}).return_token_strs)


def _tokens(model: ServedModel, token_ids: list[int], with_strings: bool) -> Tokens:
    names = [model.tokenizer.token(token_id) or "" for token_id in token_ids] if with_strings else None
    return Tokens(len(token_ids), model.card.max_model_len, token_ids, names)


def _json(body: msgspec.Struct) -> Response:
    return Response(_encoder.encode(body), media_type="application/json")
