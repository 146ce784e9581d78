"""The routes that only tell: models, health, readiness, version, metrics."""

import importlib.metadata
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api_server.generation_backend import GenerationBackend, HttpMetrics
from api_server.served_model import ServedModel

VERSION = importlib.metadata.version("shoal")

_encoder = msgspec.json.Encoder()


class ModelObject(msgspec.Struct, frozen=True, tag_field="object", tag="model"):
    """OpenAI's model object, with the context length as vLLM adds it."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "shoal"


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """What is served."""

    data: list[ModelObject]


class Status(msgspec.Struct, frozen=True):
    """Of the process."""

    status: Literal["ok", "ready", "waiting for the coordinator or an engine core", "draining", "stalled"]


class VersionObject(msgspec.Struct, frozen=True):
    """Of Shoal."""

    version: str


class StatusRoutes:
    """Handlers over one backend."""

    def __init__(self, backend: GenerationBackend, metrics: HttpMetrics) -> None:
        self._backend = backend
        self._metrics = metrics

    async def models(self, request: Request) -> Response:
        """GET /v1/models. Raises NoModel."""
        return _json(ModelList([_describe(model) for model in await self._backend.models()]))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}; names may hold slashes. Raises UnknownModel, NoModel."""
        return _json(_describe(await self._backend.model(request.path_params["model"])))

    async def health(self, request: Request) -> Response:
        """GET /health: the process goes on, whatever it can serve. A coordinator that is away is no reason to end it:
        its streams do not need one."""
        return _json(Status("ok")) if self._backend.progressing else _json(Status("stalled"), 503)

    async def ready(self, request: Request) -> Response:
        """GET /ready: whether a load balancer should send requests here."""
        if self._backend.draining:
            return _json(Status("draining"), 503)
        if not self._backend.ready:
            return _json(Status("waiting for the coordinator or an engine core"), 503)
        return _json(Status("ready"))

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return _json(VersionObject(VERSION))

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: Prometheus exposition."""
        body, content_type = self._metrics.exposition()
        return Response(body, headers={"content-type": content_type})


def _describe(model: ServedModel) -> ModelObject:
    return ModelObject(model.name, model.created, model.card.max_model_len)


def _json(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(_encoder.encode(body), status, media_type="application/json")
