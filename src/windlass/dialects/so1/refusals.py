"""Errors in the protocol's form: a code of a fixed list, a message, and details for some. They name no token, path or trace."""

from __future__ import annotations

from typing import Any

from windlass.dialects.base import NoRoute, Reply, Request
from windlass.dialects.so1.sessions import NotVerified, bearer
from windlass.dialects.so1.verbs import NotValid
from windlass.errors import (
    BadInput,
    Conflict,
    DuplicateKey,
    Forbidden,
    LimitReached,
    NotFound,
    Pruned,
    StoreError,
    Unauthorized,
    WindlassError,
    WrongState,
)

CODES: tuple[tuple[tuple[type[Exception], ...], str, int], ...] = (
    ((Unauthorized,), "UNAUTHORIZED", 401),
    ((Forbidden,), "FORBIDDEN", 403),
    ((NotFound, Pruned, NoRoute), "NOT_FOUND", 404),
    ((NotValid,), "VALIDATION_ERROR", 400),
    ((BadInput,), "BAD_REQUEST", 400),
    ((WrongState, DuplicateKey, Conflict), "CONFLICT", 409),
    ((LimitReached,), "SERVICE_UNAVAILABLE", 429),
    ((StoreError, NotVerified), "SERVICE_UNAVAILABLE", 503),
    ((Exception,), "INTERNAL_SERVER_ERROR", 500),
)
"""The code and the status of each kind of error; the first that fits."""

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
_REASONS = {
    "missing": "The header Authorization is missing; send Authorization: Bearer TOKEN.",
    "malformed": "The header Authorization is malformed; send Authorization: Bearer TOKEN.",
    "unknown": "The token is not valid; send another.",
}


def refuse(request: Request, error: Exception) -> Reply:
    """The answer to an error."""
    code, status = next((code, status) for kinds, code, status in CODES if isinstance(error, kinds))
    details = _details(request, error)
    body: dict[str, Any] = {"code": code, "message": _message(error, details)} | ({"details": details} if details else {})
    return Reply({"requestId": request.id, "error": body}, status, _HEADERS.get(status, {}))


def _details(request: Request, error: Exception) -> dict[str, Any]:
    """What a program can use of an error."""
    if isinstance(error, NoRoute):
        return {"method": request.method, "path": request.path}
    if isinstance(error, Unauthorized):
        header = request.headers.get("authorization")
        return {"reason": "missing" if header is None else "malformed" if bearer(header) is None else "unknown"}
    if isinstance(error, NotValid):
        return {"member": error.member}
    return {}


def _message(error: Exception, details: dict[str, Any]) -> str:
    """What happened, and what to do next."""
    if isinstance(error, Unauthorized):
        return _REASONS[details["reason"]]
    if isinstance(error, NoRoute):
        return "There is no such route."
    if isinstance(error, DuplicateKey):
        return "The Idempotency-Key belongs to another request of the last 24 hours; use a new key for a new request."
    if isinstance(error, StoreError):  # its own message names paths, hosts and users
        return "The store cannot do this now; try again in a moment."
    if type(error) is BadInput:  # the hub's own message names members of the body, which may be among those that are not kept
        return "The request cannot be read; send one JSON object in UTF-8, and each header once."
    return str(error) if isinstance(error, WindlassError) else "The server has failed to answer."
