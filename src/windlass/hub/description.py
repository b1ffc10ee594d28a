"""The hub's own tables of verbs, and their description."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from starlette.responses import Response

from windlass import __version__
from windlass.api.gives import JSON
from windlass.api.openapi import document
from windlass.api.verbs import API, NATIVE, OUTSIDE
from windlass.dialects.base import Dialect, Handler
from windlass.hub import problems
from windlass.hub.requests import HubRequest

_ROUTES = ("jobs", "runs", "groups", "controls", "slots", "schedules", "worker", "events", "access", "stats", "doctor", "page")


def tables() -> tuple[Dialect, ...]:
    """The tables of every hub: the API, and what is outside of it."""
    handlers: dict[str, Handler] = {"describe": describe}
    for name in _ROUTES:
        handlers |= import_module(f"windlass.hub.routes.{name}").HANDLERS
    return Dialect(API, NATIVE, handlers, problems.of), Dialect("", OUTSIDE, handlers, problems.of, strict=False)


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    return document(((table.prefix, verb) for table in tables() for verb in table.verbs), __version__)


@cache
def _document() -> bytes:
    return msgspec.json.encode(description())


async def describe(request: HubRequest) -> Response:
    """The document."""
    return Response(_document(), media_type=JSON)
