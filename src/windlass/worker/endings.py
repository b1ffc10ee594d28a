"""What a worker's log tells of the end of an attempt: one line, as loud as the end is bad."""

from __future__ import annotations

import logging
from contextlib import suppress

from windlass.machine import Fail, Refuse, Report, Succeed
from windlass.model import Failure, State
from windlass.worker.context import MARKS
from windlass.worker.executions import Execution

_LOG = logging.getLogger("windlass.worker")
_FOR_GOOD = (State.FAILED, State.QUARANTINED)
FOR_GOOD = "Run %s of %s has failed for good in attempt %d, after %.3f s: %s: %.2000s"
AGAIN = "Run %s of %s failed in attempt %d, after %.3f s, and is tried again: %s: %.2000s"
UNHEARD = "Run %s of %s failed in attempt %d, after %.3f s, and is no longer held, so what became of that is not known: %s: %.2000s"


class AttemptFailed(Exception):
    """An attempt that left no exception here: it ran in another process, or was stopped from outside."""


class Elsewhere(Exception):
    """What another process told of its failure: a traceback, or the end of its standard error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def tell_end(execution: Execution, report: Report, state: State | None) -> None:
    """Log how an attempt ended, by the state that the store gave its run: an error for good, a warning when it is tried again.

    Without a state its answer was lost: the report may have been stored, and is as loud as it would be then.
    """
    run = execution.run
    if type(report) is Succeed or (state not in _FOR_GOOD and not isinstance(report, Fail | Refuse)):
        _LOG.debug("Run %s of %s: %s.", run.id, run.job, state or "no longer held")
        return
    failure = report.error if isinstance(report, Fail | Refuse) else None
    with suppress(Exception):  # whatever an exception or somebody's log handler is made of, the worker goes on
        failure = failure or Failure(code=report.name, message="It was returned too often without an end.")
        last = run.burnt + 1 >= run.max_attempts or (isinstance(report, Fail) and not report.retry)
        _tell_failure(execution, failure, state, last=last)


def _tell_failure(execution: Execution, failure: Failure, state: State | None, *, last: bool) -> None:
    level = logging.ERROR if state in _FOR_GOOD or (state is None and last) else logging.WARNING
    text = UNHEARD if state is None else FOR_GOOD if state in _FOR_GOOD else AGAIN
    call, seconds = execution.context.call, (execution.duration or 0) / 1000
    _LOG.log(
        level,
        text,
        *(call.run, call.job, call.attempt, seconds, failure.code, failure.message),
        exc_info=_exception(execution, failure),
        extra={name: getattr(call, name) for name in MARKS} | {"duration": seconds},
    )


def _exception(execution: Execution, failure: Failure) -> BaseException:
    """What the handler raised, where that is why the attempt failed; else what is known, in front of what it raised when it was stopped."""
    kept, error = execution.context.failed_with or (None, None)
    if error is not None and kept is failure:
        return error
    unseen = AttemptFailed(f"{failure.code}: {failure.message}")
    unseen.__cause__ = error if error is not None else None if failure.detail is None else Elsewhere(failure.detail)
    return unseen
