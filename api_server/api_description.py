"""`GET /openapi.json` and `GET /docs`: what the API is, for tools and for people."""

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from api_server.docs_page import DOCS_PAGE
from api_server.openapi import api_document


async def document(request: Request) -> Response:
    """GET /openapi.json."""
    return Response(_encoded_document(), media_type="application/json")


async def page(request: Request) -> Response:
    """GET /docs."""
    return HTMLResponse(DOCS_PAGE)


@functools.cache
def _encoded_document() -> bytes:
    return msgspec.json.encode(api_document())
