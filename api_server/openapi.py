"""The OpenAPI description of the HTTP API (OpenAPI 3.1), made from the types that requests are parsed into.

What the types cannot say is added here: ranges of numbers, and the fields that are accepted without effect or only to
say "off".
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from api_server.chat_format import ChatCompletion, ChatCompletionChunk
from api_server.chat_schema import ChatRequest
from api_server.completion_format import Completion
from api_server.completion_schema import CompletionRequest
from api_server.errors import ErrorEnvelope
from api_server.json_body import Switch
from api_server.sampling_options import RANGES
from api_server.status_routes import VERSION, ModelList, ModelObject, Status, VersionObject
from api_server.token_routes import DetokenizeRequest, Text, TokenizeRequest, Tokens
from api_server.unsupported import CHAT_SWITCHES, COMPLETION_SWITCHES, WITHOUT_EFFECT

JsonObject = dict[str, Any]
_REF = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """One route."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | None
    """None for plain text."""
    body: tuple[type[msgspec.Struct], ...] = ()
    """Any of these."""
    events: type[msgspec.Struct] | None = None
    """What a streamed answer's events hold."""


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Chat", ChatCompletion, (ChatRequest,), ChatCompletionChunk),
    Operation("post", "/v1/completions", "Completions", Completion, (CompletionRequest,), Completion),
    Operation(
        "post", "/tokenize", "Token ids of a text, or of a chat's prompt", Tokens, (TokenizeRequest, ChatRequest)
    ),
    Operation("post", "/detokenize", "Text of token ids", Text, (DetokenizeRequest,)),
    Operation("get", "/v1/models", "What is served", ModelList),
    Operation("get", "/v1/models/{model}", "One model", ModelObject),
    Operation("get", "/health", "Whether the process lives", Status),
    Operation("get", "/ready", "Whether a request could be served now; 503 if not", Status),
    Operation("get", "/version", "The version", VersionObject),
    Operation("get", "/metrics", "Prometheus metrics", None),
)


def api_document() -> JsonObject:
    """The description, as JSON can hold it."""
    types: dict[type[msgspec.Struct], None] = {ErrorEnvelope: None}
    for operation in OPERATIONS:
        types |= dict.fromkeys(
            each for each in (operation.answer, *operation.body, operation.events) if each is not None
        )
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    _complete(schemas["ChatRequest"], CHAT_SWITCHES)
    _complete(schemas["CompletionRequest"], COMPLETION_SWITCHES)
    paths: dict[str, JsonObject] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": VERSION, "description": "OpenAI's API for open-weight models."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _complete(schema: JsonObject, switches: Mapping[str, Switch]) -> None:
    properties = schema["properties"]
    for name, limits in RANGES.items():
        if name in properties:
            _limit(properties[name], {"minimum" if not limits.low_excluded else "exclusiveMinimum": limits.low})
            _limit(properties[name], {"maximum": limits.high})
    for name, switch in switches.items():
        properties[name] = {"enum": [None, *switch.off], "description": "Not supported: only these values are taken."}
    for name in WITHOUT_EFFECT:
        properties[name] = {"description": "Without effect."}


def _limit(schema: JsonObject, limit: JsonObject) -> None:
    for option in schema.get("anyOf", [schema]):
        if option.get("type") in ("integer", "number"):
            option.update(limit)


def _described(operation: Operation) -> JsonObject:
    content: JsonObject = {"text/plain": {}}
    if operation.answer is not None:
        content = {"application/json": {"schema": _reference(operation.answer)}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _reference(operation.events)}
    described: JsonObject = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "Success", "content": content},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": _reference(ErrorEnvelope)}},
            },
        },
    }
    if operation.body:
        schemas = [_reference(each) for each in operation.body]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{model}" in operation.path:
        described["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return described


def _reference(struct: type[msgspec.Struct]) -> JsonObject:
    return {"$ref": _REF.format(name=struct.__name__)}
