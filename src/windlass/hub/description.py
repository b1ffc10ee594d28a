"""What there is to ask for, as OpenAPI says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Litestar, Response, get

from windlass import wire
from windlass.hub.problems import MEDIA_TYPE
from windlass.hub.requests import HubRequest

_METHODS = ("get", "post", "put", "patch", "delete")


def description(app: Litestar) -> dict[str, Any]:
    """Litestar's description, with what it cannot know: the scope of each route, and that everything else is a problem."""
    document = app.openapi_schema.to_schema()
    (_,), schemas = msgspec.json.schema_components([wire.Problem], ref_template="#/components/schemas/{name}")
    document["components"]["schemas"] |= schemas
    otherwise = {
        "description": "What went wrong, and what to do next",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    scopes = _scopes(app)
    for path, method, operation in operations(document):
        operation["responses"].pop("400", None)
        operation["responses"]["default"] = otherwise
        operation["x-scope"] = scope = scopes[path, method]
        if scope is None:
            operation["security"] = []
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every path and method there is."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in _METHODS:
                yield path, method, operation


def _scopes(app: Litestar) -> dict[tuple[str, str], Any]:
    return {
        (route.path_format, method.lower()): handler.opt.get("scope")
        for route in app.routes
        for method, (handler, _) in getattr(route, "route_handler_map", {}).items()
    }


@get("/api/v1/openapi.json", opt={"scope": None}, include_in_schema=False)
async def describe(request: HubRequest) -> Response[bytes]:
    """The document; it is made once."""
    kept = request.app.state
    if "description" not in kept:
        kept["description"] = msgspec.json.encode(description(request.app))
    return Response(kept["description"], media_type="application/json")
