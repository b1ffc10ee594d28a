"""Errors as answers: problem details by RFC 9457, with what happened and what to do next."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from windlass.api.problems import MEDIA_TYPE, Problem, problem_of
from windlass.dialects.base import NoRoute
from windlass.errors import Forbidden, LimitReached, StoreError, WindlassError
from windlass.hub.requests import HubRequest

_LOG = logging.getLogger("windlass.hub")

_AWAY = "The hub's store cannot do this now."
_AGAIN = "Try again; the hub's log says more under the request id."


def of(request: HubRequest, error: Exception) -> Response:
    """The answer to an error."""
    if isinstance(error, WindlassError):
        return _of_windlass(request, error)
    if isinstance(error, NoRoute):
        return _of_no_route(request, error)
    return _answer(unexpected(request.id))


def record(request: HubRequest, error: Exception) -> None:
    """Log what an operator should know of an error, whatever its answer says."""
    if isinstance(error, Forbidden):
        target = request.method, request.scope["path"]
        _LOG.warning("Request %s of %s was refused, %s %r: %s", request.id, _who(request), *target, error.message)
    elif isinstance(error, StoreError):
        _LOG.warning("Request %s was answered %d: %s", request.id, error.status, error)
    elif not isinstance(error, WindlassError | NoRoute | ClientDisconnect):  # a client that has gone gets no answer
        _LOG.error("Request %s failed.", request.id, exc_info=error)


def _answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA_TYPE)


def _of_windlass(request: HubRequest, error: WindlassError) -> Response:
    """An error raised on purpose. A store that is unreachable or full will recover."""
    headers = {"Retry-After": "1"} if isinstance(error, StoreError | LimitReached) else {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    problem = problem_of(error, request.id)
    if isinstance(error, StoreError):
        problem = replace(problem, detail=_AWAY, hint=_AGAIN)  # its own message names paths, hosts and users
    return _answer(problem, headers)


def _who(request: HubRequest) -> str:
    return request.caller.actor if "caller" in request.scope else "an unknown caller"


def _of_no_route(request: HubRequest, error: NoRoute) -> Response:
    status, methods = error.status, error.methods
    code = status.phrase.lower().replace(" ", "_")
    hint = f"/api/v1/openapi.json lists {'all paths' if methods is None else 'the methods of each path'}."
    problem = Problem(f"urn:windlass:error:{code}", status.phrase, status.value, status.phrase, code, hint, request.id)
    return _answer(problem, None if methods is None else {"Allow": methods})


def unexpected(request_id: str) -> Problem:
    """The answer to an unexpected error of the hub itself."""
    return Problem(
        type="urn:windlass:error:internal",
        title="Internal error",
        status=500,
        detail="The hub has failed to answer.",
        code="internal",
        hint="Try again; if it stays, look for the request id in the hub's log.",
        request_id=request_id,
    )
