"""Every error says what happened and what to do next, and has its own code and HTTP status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol


class _Ended(Protocol):
    """What an error message needs of a run."""

    @property
    def id(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> Any: ...
    @property
    def reason(self) -> str | None: ...


LONGEST = 64  # characters of a name that are compared and shown


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that was probably meant, if any; `cutoff` is how alike they must be, from 0 to 1."""
    by_text = {one[:LONGEST].lower(): one for one in known}
    near = difflib.get_close_matches(name[:LONGEST].lower(), list(by_text), n=1, cutoff=cutoff)
    return by_text[near[0]] if near else None


class WindlassError(Exception):
    """Base of all errors raised on purpose."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


class BadInput(WindlassError):
    """The request is invalid; nothing was changed."""

    code, status = "bad_input", 400


class TooLarge(BadInput):
    """The request is over a limit; nothing was changed."""

    code, status = "too_large", 413


class TooSlow(BadInput):
    """The request did not arrive completely in time; nothing was changed."""

    code, status = "too_slow", 408


class HeadTooLarge(BadInput):
    """The address or the headers of a request are over the limit."""

    code, status = "head_too_large", 431


class UnknownJob(WindlassError):
    """A run was requested of a job that is not defined."""

    code, status = "unknown_job", 422


class NotFound(WindlassError):
    """The requested record does not exist."""

    code, status = "not_found", 404


class Pruned(WindlassError):
    """The run existed; retention has removed it."""

    code, status = "pruned", 410


class WrongState(WindlassError):
    """The state of the run does not allow this transition."""

    code, status = "wrong_state", 409


class NotClaimable(WindlassError):
    """A queued run that this worker cannot claim now; `reasons` has what `why` tells of it."""

    code, status = "not_claimable", 409

    def __init__(self, message: str, *, hint: str, reasons: Sequence[Any] = ()) -> None:
        super().__init__(message, hint=hint)
        self.reasons = list(reasons)


class NotEditable(WrongState):
    """The field can no longer be changed."""

    code = "not_editable"


class LeaseLost(WindlassError):
    """The token is not that of the current lease."""

    code, status = "lease_lost", 409


class Cancelled(WindlassError):
    """The run was cancelled; the report was not stored."""

    code, status = "cancelled", 409


class Timeout(WindlassError, TimeoutError):
    """The wait timed out, and left nothing behind."""

    code, status = "timeout", 504


class NotFinished(WindlassError):
    """The value is known only after the end of the run, or of the transaction."""

    code, status = "not_finished", 409


_NEXT = {"cancelled": "Rerun it to have it executed after all.", "skipped": "Rerun it to have it executed after all."}


class RunFailed(WindlassError):
    """The result was requested of a run that did not succeed."""

    code, status = "run_failed", 409

    def __init__(self, run: _Ended) -> None:
        self.run, self.error = run, run.error
        why = f": {run.error.code}: {run.error.message}" if run.error is not None else f": {run.reason}" if run.reason else ""
        super().__init__(
            f"Run {run.id} of {run.job!r} ended {run.state}{why.removesuffix('.')}.",
            hint=_NEXT.get(run.state, "Fix the cause, then rerun it."),
        )


class DuplicateKey(WindlassError):
    """The key is taken: by a run with different content, or by an existing schedule where a new one was requested."""

    code, status = "duplicate_key", 409


class LimitReached(WindlassError):
    """A limit of the system is reached."""

    code, status = "limit_reached", 429


class Conflict(WindlassError):
    """A unique key was taken between reading and writing; nothing was written."""

    code, status = "conflict", 409


class StoreError(WindlassError):
    """The store could not execute the request."""

    code, status = "store_failed", 503


class StoreBusy(StoreError):
    """Another writer held the store for too long; nothing was written."""

    code = "store_busy"


class StoreUnreachable(StoreError):
    """There is no connection to the store; nothing was sent."""

    code = "store_unreachable"


class HubUnreachable(StoreUnreachable):
    """There is no connection to the hub; nothing was sent."""

    code = "hub_unreachable"


class HubFailed(WindlassError):
    """The server at the hub's address does not answer like a hub of this version."""

    code, status = "hub_failed", 502


class OutcomeUnknown(StoreError):
    """The connection broke, or the disk failed, while committing: it may or may not have happened."""

    code = "outcome_unknown"
    settled = False
    """Whether the outcome is final by now, so that what the store shows stays true and nothing appears later."""

    def __init__(self, message: str, *, hint: str, settled: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.settled = settled


class StoreFull(StoreError):
    """The disk is full; nothing was written."""

    code, status = "store_full", 507


class StoreBroken(StoreError):
    """The store's files or its disk are damaged; only a restart and a check can show how much."""

    code = "store_broken"


class SchemaMismatch(StoreError):
    """The schema of the store is not the one that this version needs."""

    code = "schema_mismatch"


class WrongProcess(StoreError):
    """A connection was used in a forked child."""

    code, status = "wrong_process", 500


class NeedsLoop(WindlassError):
    """An async store was used without an event loop."""

    code = "needs_loop"


class EgressRefused(BadInput):
    """A user-supplied address must not be used; nothing was sent."""

    code = "egress_refused"
    allowed_by: str | None = None
    """The argument of `Egress` that would allow it."""

    def __init__(self, message: str, *, hint: str, allowed_by: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.allowed_by = allowed_by


class EgressFailed(WindlassError):
    """A server at a user-supplied address could not be reached, or did not answer as it should."""

    code, status = "egress_failed", 502


class EgressTimeout(EgressFailed):
    """The request took too long."""

    code, status = "egress_timeout", 504


class EgressTooLarge(EgressFailed):
    """The answer is larger than the limit."""

    code = "egress_too_large"


class Unauthorized(WindlassError):
    """The request has no valid credentials."""

    code, status = "unauthorized", 401


class Forbidden(WindlassError):
    """The credentials are valid but do not permit this."""

    code, status = "forbidden", 403


class NotJson(BadInput):
    """The body is not declared as JSON; nothing was changed."""

    code, status = "not_json", 415


@contextmanager
def in_doubt(unknown: OutcomeUnknown) -> Iterator[None]:
    """While an outcome is unknown, no store error may claim that nothing was written."""
    try:
        yield
    except StoreError as error:
        raise unknown from error


def of_one(error: WindlassError) -> bool:
    """Whether a store error may concern a single member of a set: it is not transient, and the store itself works."""
    return type(error) is StoreError


TRANSIENT = (StoreUnreachable, StoreBusy, StoreFull, OutcomeUnknown)
"""Transient errors: callers retry. All others propagate."""
