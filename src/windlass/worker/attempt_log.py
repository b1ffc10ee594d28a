"""The end of an attempt in the worker's log: one line, at a level that fits how it ended."""

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
UNANSWERED = "Run %s of %s failed in attempt %d, after %.3f s, and is no longer held, so the outcome is not known: %s: %.2000s"


class AttemptFailed(Exception):
    """An attempt without an exception in this process: it ran in another one, or was stopped from outside."""


class RemoteTraceback(Exception):
    """The failure as another process described it: a traceback, or the end of its standard error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def log_end(execution: Execution, report: Report, state: State | None) -> None:
    """Log how an attempt ended, by the new state of its run: an error for good, a warning when it is tried again.

    Without a state the answer was lost: the report may have been stored, and has the level that it would have then.
    """
    run = execution.run
    if type(report) is Succeed or (state not in _FOR_GOOD and not isinstance(report, Fail | Refuse)):
        _LOG.debug("Run %s of %s: %s.", run.id, run.job, state or "no longer held")
        return
    failure = report.error if isinstance(report, Fail | Refuse) else None
    with suppress(Exception):  # an exception or log handler of the application must not end the worker
        failure = failure or Failure(code=report.name, message="It was returned too often without an end.")
        last = run.failures + 1 >= run.max_attempts or (isinstance(report, Fail) and not report.retry)
        _log_failure(execution, failure, state, last=last)


def _log_failure(execution: Execution, failure: Failure, state: State | None, *, last: bool) -> None:
    level = logging.ERROR if state in _FOR_GOOD or (state is None and last) else logging.WARNING
    text = UNANSWERED if state is None else FOR_GOOD if state in _FOR_GOOD else AGAIN
    call, seconds = execution.context.call, (execution.duration or 0) / 1000
    _LOG.log(
        level,
        text,
        *(call.run, call.job, call.attempt, seconds, failure.code, failure.message),
        exc_info=_exception(execution, failure),
        extra={name: getattr(call, name) for name in MARKS} | {"duration": seconds},
    )


def _exception(execution: Execution, failure: Failure) -> BaseException:
    """The handler's exception if it is why the attempt failed; else the failure, with the exception that the stop caused behind it."""
    own_failure, error = execution.context.failed_with or (None, None)
    if error is not None and own_failure is failure:
        return error
    exception = AttemptFailed(f"{failure.code}: {failure.message}")
    exception.__cause__ = error if error is not None else None if failure.detail is None else RemoteTraceback(failure.detail)
    return exception
