"""The API's description says what the routes are and what the types take."""

import re
from typing import Any

import msgspec
import pytest
from http_fakes import Server

from api_server.chat_schema import ChatRequest
from api_server.completion_schema import CompletionRequest
from api_server.openapi import api_document
from api_server.unsupported import CHAT_SWITCHES, COMPLETION_SWITCHES, WITHOUT_EFFECT

DOCUMENT = api_document()
UNDESCRIBED = {"/openapi.json", "/docs"}


async def test_it_is_served_with_a_page_that_loads_nothing_from_elsewhere() -> None:
    client = Server().client
    assert (await client.get("/openapi.json")).json() == msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r"https?://|src=|@import", page.text) == []


def test_it_describes_every_route_and_no_other() -> None:
    routes = {
        (route.path.replace(":path", ""), (route.methods - {"HEAD"}).pop().lower())  # type: ignore[attr-defined]
        for route in Server().app.routes
    }
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(path, method) for path, method in routes if path not in UNDESCRIBED}


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    references = re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(DOCUMENT).decode())
    assert set(references) <= schemas.keys()


@pytest.mark.parametrize(
    ("name", "struct", "switches"),
    [("ChatRequest", ChatRequest, CHAT_SWITCHES), ("CompletionRequest", CompletionRequest, COMPLETION_SWITCHES)],
)
def test_a_request_has_all_its_fields_with_their_ranges(name: str, struct: Any, switches: Any) -> None:
    properties = DOCUMENT["components"]["schemas"][name]["properties"]
    assert properties.keys() == {*struct.__struct_fields__, *switches, *WITHOUT_EFFECT}
    assert properties["n"]["maximum"] == 128
    assert properties["top_p"]["anyOf"][0]["exclusiveMinimum"] == 0
