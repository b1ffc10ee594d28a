"""The end of a run as `update_jobrun` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.dialects.guards.errors import InvalidOperationError, InvalidValueError
from windlass.dialects.guards.rules import check_integer, valid
from windlass.dialects.guards.views import REPORTED, RunResult
from windlass.dialects.guards.words import JobRunStatus
from windlass.engine import checks
from windlass.machine import Fail, Report, Skip, Succeed
from windlass.model import Failure, Limits, Run

JOBRUN_MUTABLE_FIELDS = {"finished_at", "status", "exit_code", "error", "artifacts"}
"""The members of a run that `update_jobrun` accepts. `finished_at` is the time at which the end is stored, whatever is sent."""

_WITH: Mapping[JobRunStatus, set[str]] = {
    JobRunStatus.COMPLETED: {"exit_code", "artifacts"},
    JobRunStatus.FAILED: {"exit_code", "error", "artifacts"},
    JobRunStatus.SKIPPED: {"error"},
}
"""The members that each end may have."""


def report_of(updates: Mapping[str, Any], run: Run) -> tuple[JobRunStatus, Report]:
    """The status that ends a run, and the report to the engine."""
    status = _status(updates.get("status"))
    members = {name: value for name, value in updates.items() if value is not None and name not in ("status", "finished_at")}
    if others := sorted(members.keys() - _WITH[status]):
        raise InvalidOperationError(f"A {status} run has no {', '.join(others)}.", hint="Leave it out.")
    exit_code = check_integer(members.get("exit_code", int(status is JobRunStatus.FAILED)), "exit_code", -(2**31), 2**31 - 1)
    result, text = RunResult(exit_code, _artifacts(members.get("artifacts"))), _text(members.get("error"))
    match status:
        case JobRunStatus.COMPLETED:
            return status, Succeed(token=run.token, output=_stored(result, Limits().output))
        case JobRunStatus.FAILED:
            failure = Failure(REPORTED, text or "The run was reported as failed.", _stored(result, Limits().error // 2))
            return status, Fail(token=run.token, error=failure)
        case JobRunStatus.SKIPPED:
            with valid("error"):
                return status, Skip(token=run.token, reason=checks.reason(text or "skipped"))


def _stored(result: RunResult, limit: int) -> str:
    with valid("artifacts"):
        return result.to_text(limit)


def _status(value: Any) -> JobRunStatus:
    if value is None:
        raise InvalidOperationError(
            "A run is updated once, with the status that ends it.", hint=f"Send status: one of {', '.join(JobRunStatus)}."
        )
    try:
        return JobRunStatus(value)
    except ValueError:
        raise InvalidValueError("status", f"There is no status {value!r:.40}.", hint=f"Use one of {', '.join(JobRunStatus)}.") from None


def _artifacts(value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list | tuple):
        raise InvalidValueError("artifacts", f"artifacts must be a list, not {value!r:.80}.")
    return list(value or ())


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidValueError("error", f"error must be a text, not {value!r:.80}.")
    return value
