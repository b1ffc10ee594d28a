"""What any request may be answered: that it is done, or what is wrong."""

from __future__ import annotations

from msgspec import Struct

from windlass.errors import WindlassError


class Done(Struct, frozen=True):
    """It is done; there is nothing else to say."""

    done: bool = True


DONE = Done()


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
    """An error as it is told."""
    return Problem(
        type=f"urn:windlass:error:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=error.message,
        code=error.code,
        hint=error.hint,
        request_id=request_id,
    )
