"""The words of the Forge job queue: its states, a row of its table `jobs`, and its defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from windlass.dialects.base import Words
from windlass.machine import TOO_MANY_REQUEUES
from windlass.model import Attempt, Failure, Options, Run, Solver, State
from windlass.payload import reader

QUEUE = "forge"
MAX_ATTEMPTS, MAX_RUNTIME, LEASE = 3, 300_000, 60_000
PAGE, LARGEST_PAGE = 50, 200
UNLIMITED = 2**31 - 1
"""The max_runtime_ms of a run without a limit: the longest time for which a timer of JavaScript can be set."""


class JobStatus(StrEnum):
    """The status of a job."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


WORDS = Words(
    {
        State.WAITING: JobStatus.PENDING,
        State.SCHEDULED: JobStatus.PENDING,
        State.QUEUED: JobStatus.PENDING,
        State.CLAIMED: JobStatus.ASSIGNED,
        State.RUNNING: JobStatus.RUNNING,
        State.SUCCEEDED: JobStatus.COMPLETED,
        State.FAILED: JobStatus.QUARANTINED,
        State.QUARANTINED: JobStatus.QUARANTINED,
        State.CANCELLING: JobStatus.FAILED,
        State.CANCELLED: JobStatus.FAILED,
        State.SKIPPED: JobStatus.FAILED,
    }
)


class Job(Struct, frozen=True):
    """A job as a row of the protocol's table. `params`, `result` and `fail_history` are texts; times are milliseconds."""

    id: str
    type: str
    params: str
    status: JobStatus
    priority: int
    worker_id: str | None
    result: str | None
    result_hash: str | None
    created_at: int
    claimed_at: int | None
    heartbeat_at: int | None
    completed_at: int | None
    attempts: int
    max_attempts: int
    max_runtime_ms: int
    fail_reason: str | None
    fail_history: str
    solver_url: str | None
    solver_checksum: str | None


class WorkerRecord(Struct, frozen=True):
    """A worker as a row of the protocol's table."""

    id: str
    name: str | None
    cores: int
    ram_gb: float
    tags: str
    registered_at: int
    last_heartbeat: int


class _Fail(Struct, frozen=True):
    """A failure in the form of the protocol."""

    reason: str
    worker_id: str | None
    ts: int | None


_encode = msgspec.json.Encoder().encode
_is_hex = re.compile(r"[0-9a-f]{32}").fullmatch

_LOST, _OVERLONG = "worker_lost", "max_runtime_exceeded"
_NOT_REPORTED = {_LOST, _OVERLONG, TOO_MANY_REQUEUES}
_REASONS = {_LOST: "heartbeat_timeout", _OVERLONG: "max_runtime_exceeded"}
_STOPPED = (State.CANCELLING, State.CANCELLED)
_EXHAUSTED = (State.FAILED, State.QUARANTINED)


def status_of(state: State) -> JobStatus:
    """The status of a run in this state."""
    return JobStatus(WORDS.label(state))


def shown_id(run_id: str) -> str:
    """The id of a run as 32 hexadecimal digits."""
    return run_id.replace("-", "")


def run_id_of(text: str) -> str | None:
    """The engine's form of an id in either form; None if it cannot be one."""
    digits = text.replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])) if _is_hex(digits) else None


def options_of(queue: str, priority: int, max_attempts: int, max_runtime: int, solver: Solver | None) -> Options:
    """The protocol's rules for a run: it is tried again at once and in its place, and is quarantined in the end."""
    return Options(
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        max_runtime=max_runtime,
        backoff=(0,),
        on_exhausted="quarantined",
        retry_place="keep",
        solver=solver,
    )


def job_of(run: Run, attempts: Sequence[Attempt] = ()) -> Job:
    """A run as a row. The attempts are needed only of a run that has several."""
    fails = list(_fails(run, attempts))
    solver_url, solver_checksum = _solver(run)
    return Job(
        id=shown_id(run.id),
        type=run.job,
        params=run.payload,
        status=status_of(run.state),
        priority=run.priority,
        worker_id=run.worker,
        result=_text(run.output),
        result_hash=run.output_hash,
        created_at=run.created_at,
        claimed_at=run.claimed_at,
        heartbeat_at=_heartbeat_at(run),
        completed_at=run.finished_at if run.state is State.SUCCEEDED else None,
        attempts=run.failures + (run.claimed_at is not None and run.state not in _EXHAUSTED),
        max_attempts=run.max_attempts,
        max_runtime_ms=run.max_runtime or UNLIMITED,
        fail_reason=_fail_reason(run, fails),
        fail_history=_encode(fails).decode(),
        solver_url=solver_url,
        solver_checksum=solver_checksum,
    )


def _solver(run: Run) -> tuple[str | None, str | None]:
    """The program's address and checksum: those of the run, else what its creation sent beside it."""
    if (solver := run.policy.solver) is not None:
        return solver.url, solver.checksum
    meta = msgspec.json.decode(run.meta) if run.meta else {}
    return meta.get("solver_url"), meta.get("solver_checksum")


def _text(output: str | None) -> str | None:
    """A result as a text: the characters of a string, the JSON text of anything else."""
    return reader(str)(output) if output is not None and output.startswith('"') else output


def _heartbeat_at(run: Run) -> int | None:
    """When its lease was last renewed; after its end the moment of the end, which for a cancelled run is the cancel."""
    if run.claimed_at is None:
        return None
    if run.lease_until is not None and run.lease is not None and run.state not in _STOPPED:
        return run.lease_until - run.lease
    return run.cancel_asked_at or run.finished_at


def _fails(run: Run, attempts: Sequence[Attempt]) -> Iterator[_Fail]:
    """The failures that workers have reported, oldest first. Losses and overlong runs are not among them."""
    for attempt in attempts:
        if attempt.outcome == "failed" and attempt.error is not None and attempt.n < run.attempt:
            yield _Fail(attempt.error.message, attempt.worker, attempt.finished_at)
    if run.state in _EXHAUSTED and run.error is not None and run.error.code not in _NOT_REPORTED:
        yield _Fail(run.error.message, run.worker, run.finished_at)


def _fail_reason(run: Run, fails: Sequence[_Fail]) -> str | None:
    """Why it ended without a result, else the last failure that a worker has reported."""
    if run.state in _STOPPED:
        return "cancelled"
    if run.state is State.SKIPPED:
        return run.reason
    if run.state in _EXHAUSTED and run.error is not None:
        return _reason(run.error)
    return fails[-1].reason if fails else None


def _reason(error: Failure) -> str:
    return _REASONS.get(error.code, error.message)


def attempts_by(entry_attempt: int, attempts: Sequence[Attempt], held: bool) -> int:
    """The attempts of a run at the change that ended or began one: those used up before, and this one if a worker had it."""
    counted = [attempt for attempt in attempts if attempt.n < entry_attempt and attempt.outcome in ("failed", "lapsed")]
    returned = any(attempt.n == entry_attempt and attempt.outcome == "returned" for attempt in attempts)
    return len(counted) + (held and not returned)
