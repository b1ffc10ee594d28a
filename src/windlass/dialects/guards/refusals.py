"""Errors in the protocol's form: {"detail": text}, or a list of {loc, msg, type} for a request that is not valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import NamedTuple

from windlass.dialects.base import NoRoute, Reply, Request
from windlass.dialects.guards.errors import InvalidOperationError, InvalidValueError, TemplateNotFoundError
from windlass.errors import (
    BadInput,
    HeadTooLarge,
    LimitReached,
    NotJson,
    Pruned,
    StoreError,
    TooLarge,
    TooSlow,
    Unauthorized,
    WindlassError,
    WrongState,
)

_UNREAD = (TooLarge, TooSlow, HeadTooLarge, NotJson)
"""Requests that were refused before they were read: no member of them is wrong."""
_STATUS: tuple[tuple[type[WindlassError], HTTPStatus], ...] = (
    (InvalidOperationError, HTTPStatus.BAD_REQUEST),
    (WrongState, HTTPStatus.BAD_REQUEST),
    (Pruned, HTTPStatus.NOT_FOUND),
)
_HEADERS: tuple[tuple[tuple[type[WindlassError], ...], dict[str, str]], ...] = (
    ((Unauthorized,), {"WWW-Authenticate": "ApiKey"}),
    ((StoreError, LimitReached), {"Retry-After": "1"}),
)


class Violation(NamedTuple):
    """What is wrong with a member of a request."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "value_error"


class InvalidRequest(BadInput):
    """Members of a request are not valid; nothing was changed."""

    code, status = "not_valid", 422

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        names = ", ".join(".".join(map(str, violation.loc)) for violation in self.violations)
        super().__init__(f"Not valid: {names}.", hint="Correct the request.")


@contextmanager
def naming(member: str, where: str = "body") -> Iterator[None]:
    """Refuse a template that there is not under the name of the member that names it."""
    try:
        yield
    except TemplateNotFoundError as error:
        raise InvalidRequest([Violation((where, member), str(error))]) from error


def refuse(request: Request, error: Exception) -> Reply:
    """The answer to an error."""
    if isinstance(error, NoRoute):
        return Reply({"detail": error.status.phrase}, error.status, {} if error.methods is None else {"Allow": error.methods})
    if not isinstance(error, WindlassError):
        return Reply({"detail": HTTPStatus.INTERNAL_SERVER_ERROR.phrase}, HTTPStatus.INTERNAL_SERVER_ERROR)
    if (violations := _violations(error)) is not None:
        return Reply({"detail": [violation._asdict() for violation in violations]}, HTTPStatus.UNPROCESSABLE_ENTITY)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), error.status)
    headers = next((headers for kinds, headers in _HEADERS if isinstance(error, kinds)), {})
    return Reply({"detail": _text(error)}, status, headers)


def _violations(error: WindlassError) -> tuple[Violation, ...] | None:
    """What is wrong with a request; None where the error is no matter of its content."""
    if isinstance(error, InvalidRequest):
        return error.violations
    if isinstance(error, InvalidValueError):
        return (Violation(("body", error.member), str(error)),)
    if isinstance(error, BadInput) and not isinstance(error, _UNREAD):
        return (Violation(("body",), str(error)),)
    return None


def _text(error: WindlassError) -> str:
    """What happened, and what to do next."""
    if isinstance(error, Unauthorized):
        return "This needs a valid API key. Send it as X-API-Key, or a token of windlass as Authorization: Bearer."
    if isinstance(error, StoreError):  # its own message names paths, hosts and users
        return "The store cannot do this now; try again in a moment."
    return str(error)
