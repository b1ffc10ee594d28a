"""An error as it crosses the network, by RFC 9457."""

from __future__ import annotations

from msgspec import Struct

from windlass.errors import WindlassError

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
