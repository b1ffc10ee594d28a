"""The errors of the protocol, by their codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from windlass.errors import BadInput, StoreError, WindlassError

P = ParamSpec("P")
T = TypeVar("T")


class ZeroGError(WindlassError):
    """An error that the protocol's document names; `code` is its name there."""


class JobNotFound(ZeroGError):
    """No job of this queue has the id."""

    code, status = "JOBS_JOB_NOT_FOUND", 404

    def __init__(self, job_id: Any) -> None:
        super().__init__(f"There is no job {job_id!r:.80}.", hint="Check the id, and the backend's store and queue.")


class BackendUnreachable(ZeroGError):
    """The store cannot be used, or a job has not ended in the time for which it was waited for."""

    code, status = "JOBS_BACKEND_UNREACHABLE", 503


class HandlerThrew(ZeroGError):
    """The result was requested of a job that has none, because its handler raised."""

    code, status = "JOBS_HANDLER_THREW", 409


class BadSignature(ZeroGError):
    """A webhook was not signed with the secret."""

    code, status = "JOBS_WEBHOOK_BAD_SIGNATURE", 401


class InvalidValue(BadInput, TypeError):
    """An input or a result does not fit its job, or cannot be stored; nothing was changed."""


class AbortError(Exception):
    """The handler was asked to stop."""


def reaching(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A verb whose store errors have the protocol's code."""

    @wraps(verb)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await verb(*args, **kwargs)
        except StoreError as error:
            raise BackendUnreachable(error.message, hint=error.hint) from error

    return call
