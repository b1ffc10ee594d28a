"""Errors as answers: problem details by RFC 9457, with what happened and what to do next."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException, ValidationException
from msgspec.structs import replace

from windlass import wire
from windlass.errors import Forbidden, LimitReached, StoreError, WindlassError
from windlass.hub.requests import HubRequest

_LOG = logging.getLogger("windlass.hub")

MEDIA_TYPE = "application/problem+json"
_AWAY = "The hub's store cannot do this now."
_AGAIN = "Try again; the hub's log says more under the request id."
_HINTS = {
    401: "Send a token: Authorization: Bearer wl_...",
    404: "The paths there are: /api/v1/openapi.json.",
    405: "The methods there are: /api/v1/openapi.json.",
    413: "Send less at once.",
    415: "Send JSON: Content-Type: application/json.",
}


def answer(problem: wire.Problem, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A problem as it is sent."""
    return Response(msgspec.json.encode(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def of_windlass(request: HubRequest, error: WindlassError) -> Response[bytes]:
    """What was raised on purpose. A store that is away or full will be back."""
    headers = {"Retry-After": "1"} if isinstance(error, StoreError | LimitReached) else {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    problem = wire.problem_of(error, request.id)
    if isinstance(error, Forbidden):
        asked = request.method, request.scope["path"]
        _LOG.warning("Request %s of %s was refused, %s %r: %s", request.id, _who(request), *asked, error.message)
    if isinstance(error, StoreError):
        _LOG.warning("Request %s was answered %d: %s", request.id, error.status, error)
        problem = replace(problem, detail=_AWAY, hint=_AGAIN)  # its own words name paths, hosts and users
    return answer(problem, headers)


def _who(request: HubRequest) -> str:
    return request.caller.who if "caller" in request.scope else "somebody"


def of_litestar(request: HubRequest, error: HTTPException) -> Response[bytes]:
    """What the server found wrong before a route was asked."""
    status = 400 if isinstance(error, ValidationException) else error.status_code
    code = HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
    hint = _HINTS.get(status, "Correct the request.")
    problem = wire.Problem(
        type=f"urn:windlass:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_detail(error),
        code="bad_input" if status == HTTPStatus.BAD_REQUEST else code,
        hint=hint,
        request_id=request.id,
    )
    return answer(problem, dict(error.headers or {}))


def _detail(error: HTTPException) -> str:
    """What is wrong, without the address and the internals that Litestar puts around it."""
    if not isinstance(error, ValidationException) or not isinstance(error.extra, list):
        return error.detail.partition(" for http")[0]
    places = (f"{part.get('key', '')}: {part.get('message', '')}".strip(": ") for part in error.extra if isinstance(part, dict))
    return "The request cannot be read: " + "; ".join(places)[:1_000]


def of_anything(request: HubRequest, error: Exception) -> Response[bytes]:
    """What nobody expected: told in the log, not to the caller."""
    _LOG.error("Request %s failed.", request.id, exc_info=error)
    return answer(unexpected(request.id))


def unexpected(request_id: str) -> wire.Problem:
    """The answer when the hub itself is at fault."""
    return wire.Problem(
        type="urn:windlass:error:internal",
        title="Internal error",
        status=500,
        detail="The hub has failed to answer.",
        code="internal",
        hint="Try again; if it stays, look for the request id in the hub's log.",
        request_id=request_id,
    )


HANDLERS: dict[Any, Any] = {WindlassError: of_windlass, HTTPException: of_litestar, Exception: of_anything}


def of(request: HubRequest, error: Exception) -> Response[bytes]:
    """The answer to whatever was raised."""
    return next(handler for kind, handler in HANDLERS.items() if isinstance(error, kind))(request, error)  # type: ignore[no-any-return]
