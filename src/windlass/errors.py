"""Every error says what happened and what to do next, and knows its own code and HTTP status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol


class _Ended(Protocol):
    """What an error tells of a run."""

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


LONGEST = 64  # characters of a name that are looked at and shown


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if there is one."""
    by_text = {one[:LONGEST].lower(): one for one in known}
    near = difflib.get_close_matches(name[:LONGEST].lower(), list(by_text), n=1)
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
    """What was asked cannot be read; nothing was changed."""

    code, status = "bad_input", 400


class TooLarge(BadInput):
    """What was sent is over a limit; nothing was changed."""

    code, status = "too_large", 413


class TooSlow(BadInput):
    """The request did not come to its end in time; nothing was changed."""

    code, status = "too_slow", 408


class HeadTooLarge(BadInput):
    """The address or the headers of a request are over the limit."""

    code, status = "head_too_large", 431


class UnknownJob(WindlassError):
    """A run was asked for a job that nobody has defined."""

    code, status = "unknown_job", 422


class NotFound(WindlassError):
    """There is no such thing."""

    code, status = "not_found", 404


class Pruned(WindlassError):
    """There was such a run; retention has removed it."""

    code, status = "pruned", 410


class WrongState(WindlassError):
    """The run is in a state from which this move does not exist."""

    code, status = "wrong_state", 409


class Frozen(WrongState):
    """The field can no longer be changed."""

    code = "frozen"


class LeaseLost(WindlassError):
    """The token is not the one under which the run is held now."""

    code, status = "lease_lost", 409


class Cancelled(WindlassError):
    """The run was cancelled; the report was not stored."""

    code, status = "cancelled", 409


class NotInTime(WindlassError, TimeoutError):
    """What was waited for did not come in time; the wait is over and nothing is left of it."""

    code, status = "not_in_time", 504


class NotFinished(WindlassError):
    """Something was asked that only the end of a run, or of a transaction, can tell."""

    code, status = "not_finished", 409


_NEXT = {"cancelled": "Rerun it to have it executed after all.", "skipped": "Rerun it to have it executed after all."}


class RunFailed(WindlassError):
    """A result was asked for of a run that did not succeed."""

    code, status = "run_failed", 409

    def __init__(self, run: _Ended) -> None:
        self.run, self.error = run, run.error
        why = f": {run.error.code}: {run.error.message}" if run.error is not None else f": {run.reason}" if run.reason else ""
        super().__init__(
            f"Run {run.id} of {run.job!r} ended {run.state}{why.removesuffix('.')}.",
            hint=_NEXT.get(run.state, "Mend the cause, then rerun it."),
        )


class DuplicateKey(WindlassError):
    """The key is taken: by a run that was asked for with other content, or by a schedule where a new one was asked for."""

    code, status = "duplicate_key", 409


class LimitReached(WindlassError):
    """A bound of the system is reached."""

    code, status = "limit_reached", 429


class Conflict(WindlassError):
    """A unique key was taken between reading and writing; nothing was written."""

    code, status = "conflict", 409


class StoreError(WindlassError):
    """The store could not do what was asked."""

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
    """What answers at the hub's address does not answer as a hub of this version does."""

    code, status = "hub_failed", 502


class OutcomeUnknown(StoreError):
    """The connection broke, or the disk failed, while committing: it may or may not have happened."""

    code = "outcome_unknown"
    settled = False
    """Whether it is decided by now, so that what the store shows stays true: what is not there will not come later."""

    def __init__(self, message: str, *, hint: str, settled: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.settled = settled


class StoreFull(StoreError):
    """The disk is full; nothing was written."""

    code, status = "store_full", 507


class StoreBroken(StoreError):
    """The store's files or its disk are damaged; only a restart and a check can tell how much."""

    code = "store_broken"


class SchemaMismatch(StoreError):
    """The schema in the store is not the one this version works with."""

    code = "schema_mismatch"


class WrongProcess(StoreError):
    """A connection was carried into a forked child."""

    code, status = "wrong_process", 500


class NeedsLoop(WindlassError):
    """A store that suspends was driven without an event loop."""

    code = "needs_loop"


class EgressRefused(BadInput):
    """An address that somebody chose must not be used; nothing was sent."""

    code = "egress_refused"


class EgressFailed(WindlassError):
    """A server that somebody chose could not be reached, or did not answer as it should."""

    code, status = "egress_failed", 502


class EgressTimeout(EgressFailed):
    """It took too long."""

    code, status = "egress_timeout", 504


class EgressTooLarge(EgressFailed):
    """It sent more than is taken."""

    code = "egress_too_large"


class Unauthorized(WindlassError):
    """Whoever asks has not shown who they are."""

    code, status = "unauthorized", 401


class Forbidden(WindlassError):
    """Whoever asks is known and may not do this."""

    code, status = "forbidden", 403


class NotJson(BadInput):
    """The body is not said to be JSON; nothing was changed."""

    code, status = "not_json", 415


@contextmanager
def in_doubt(unknown: OutcomeUnknown) -> Iterator[None]:
    """While nobody knows whether something has happened, no error of the store may say that nothing was written."""
    try:
        yield
    except StoreError as error:
        raise unknown from error


def of_one(error: WindlassError) -> bool:
    """Whether an error of a store may concern one member of a set alone: it does not pass, and the store itself is well."""
    return type(error) is StoreError


AWAY = (StoreUnreachable, StoreBusy, StoreFull, OutcomeUnknown)
"""What passes by itself. Any other error of a store ends whoever meets it: going on would only hide it."""
