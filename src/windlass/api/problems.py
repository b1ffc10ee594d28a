"""An error as it crosses the network, by RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from windlass.errors import HubFailed, OutcomeUnknown, WindlassError

MEDIA_TYPE = "application/problem+json"


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error by RFC 9457: which one, what happened, what to do next."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    request_id: str | None = None


def problem_of(error: WindlassError, request_id: str | None = None) -> Problem:
    """The problem document of an error."""
    return Problem(
        type=f"urn:windlass:error:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=error.message,
        code=error.code,
        hint=error.hint,
        request_id=request_id,
    )


@cache
def _kinds() -> Mapping[str, type[WindlassError]]:
    """Every error by its code; an inherited code stands for the ancestor."""
    # An unexpected error of the hub may have ended the request halfway.
    kinds: dict[str, type[WindlassError]] = {WindlassError.code: OutcomeUnknown}
    classes = [WindlassError]
    for kind in classes:
        classes += kind.__subclasses__()
        kinds.setdefault(kind.code, kind)
    return kinds


def error_of(problem: Problem) -> WindlassError:
    """The error of a problem document."""
    kind = _kinds().get(problem.code, HubFailed)
    error = kind.__new__(kind)
    WindlassError.__init__(error, problem.detail, hint=problem.hint)  # errors with their own message have built it where they were raised
    return error
