"""What crosses the network between hub, client, worker and receivers of webhooks. Times are RFC 3339 in UTC, durations milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from windlass.engine import Outcome, Reason
from windlass.errors import BadInput, WindlassError
from windlass.machine import ENDED, MOVES, Cancel, Fail, GiveBack, Patch, Report, Snooze, Succeed
from windlass.model import (
    Attempt,
    Entry,
    Failure,
    Job,
    Key,
    LogLine,
    Missed,
    NewRun,
    Options,
    Overlap,
    Policy,
    Run,
    Skipped,
    State,
    WorkerInfo,
)

PER_ATTEMPT = 100_000
"""Log lines are counted through all attempts of a run in steps of this size, so that the lines of the first keep their own numbers."""

SCOPES = ("read", "submit", "work", "admin")
Scope = Literal["read", "submit", "work", "admin"]


def told(at: int) -> str:
    """An instant as it is told: 2026-01-31T03:00:00.000Z."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def maybe_told(at: int | None) -> str | None:
    return None if at is None else told(at)


def heard(text: str, what: str) -> int:
    """The instant that a text of RFC 3339 names; it must say its offset."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise BadInput(f"{what} is {text!r:.80}, which is no instant.", hint="Write it as 2026-01-31T03:00:00Z.")
    return round(when.timestamp() * 1000)


def maybe_heard(text: str | None, what: str) -> int | None:
    return None if text is None else heard(text, what)


# Runs


class RunView(Struct, frozen=True):
    """A run, as everybody may see it: nothing of leases and places."""

    id: str
    job: str
    queue: str
    state: State
    priority: int
    rev: int
    payload: Any
    output: Any
    error: Failure | None
    reason: str | None
    progress: Any
    attempt: int
    attempt_id: str
    failures: int
    returns: int
    max_attempts: int
    max_runtime: int | None
    policy: Policy
    retry_of: str | None
    worker: str | None
    created_at: str
    scheduled_for: str
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    cancel_asked_at: str | None
    actions: tuple[str, ...] = ()


_WAYS: dict[State, tuple[str, ...]] = {
    state: tuple(name for name, allowed in (("cancel", Cancel in moves), ("patch", Patch in moves), ("rerun", state in ENDED)) if allowed)
    for state, moves in MOVES.items()
}


def _opened(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def run_view(run: Run) -> RunView:
    """A run as it is told."""
    return RunView(
        id=run.id,
        job=run.job,
        queue=run.queue,
        state=run.state,
        priority=run.priority,
        rev=run.rev,
        payload=_opened(run.payload),
        output=_opened(run.output),
        error=run.error,
        reason=run.reason,
        progress=_opened(run.progress),
        attempt=run.attempt,
        attempt_id=run.current_attempt,
        failures=run.burnt,
        returns=run.returns,
        max_attempts=run.max_attempts,
        max_runtime=run.max_runtime,
        policy=run.policy,
        retry_of=run.retry_of,
        worker=run.worker,
        created_at=told(run.created_at),
        scheduled_for=told(run.due_at),
        claimed_at=maybe_told(run.claimed_at),
        started_at=maybe_told(run.started_at),
        finished_at=maybe_told(run.finished_at),
        cancel_asked_at=maybe_told(run.cancel_asked_at),
        actions=_WAYS[run.state],
    )


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def run_of(view: RunView) -> Run:
    """The run that a view tells of, for those who show it the same way wherever it comes from. What is not told is 0 or None."""
    return Run(
        seq=0,
        id=view.id,
        rev=view.rev,
        state=view.state,
        job=view.job,
        queue=view.queue,
        lane=0,
        band=-view.priority,
        position=0,
        payload=_text(view.payload) or "null",
        due_at=heard(view.scheduled_for, "scheduled_for"),
        created_at=heard(view.created_at, "created_at"),
        max_attempts=view.max_attempts,
        max_runtime=view.max_runtime,
        policy=view.policy,
        attempt=view.attempt,
        attempt_id=None if view.attempt_id == view.id else view.attempt_id,
        retry_of=view.retry_of,
        burnt=view.failures,
        returns=view.returns,
        worker=view.worker,
        claimed_at=maybe_heard(view.claimed_at, "claimed_at"),
        started_at=maybe_heard(view.started_at, "started_at"),
        cancel_asked_at=maybe_heard(view.cancel_asked_at, "cancel_asked_at"),
        finished_at=maybe_heard(view.finished_at, "finished_at"),
        reason=view.reason,
        error=view.error,
        output=_text(view.output),
        progress=_text(view.progress),
    )


class RunPage(Struct, frozen=True):
    """Some runs, and the cursor of the next page."""

    runs: list[RunView]
    cursor: str | None


class CreateRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that is asked for."""

    job: str
    payload: Any = None
    options: Options = Options()
    scheduled_for: str | None = None
    delay: int | None = None  # milliseconds from now, instead of scheduled_for
    key: Key | None = None
    after: tuple[str, ...] = ()
    after_end: Literal["success", "any"] = "success"
    undefined: Literal["refuse", "wait"] = "refuse"

    def new_run(self, now: int) -> NewRun:
        """The same in the engine's words."""
        if self.delay is not None and self.scheduled_for is not None:
            raise BadInput("Both delay and scheduled_for are given.", hint="Give one of them.")
        due_at = maybe_heard(self.scheduled_for, "scheduled_for") if self.delay is None else now + self.delay
        return NewRun(self.job, self.payload, self.options, due_at, self.key, self.after, self.after_end)


class CreateRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs that are asked for together: all of them are stored, or none."""

    runs: list[CreateRun]


class CreatedRun(Struct, frozen=True):
    """The answer to a creation."""

    id: str
    created: bool
    pruned: bool = False
    run: RunView | None = None


class CreatedRuns(Struct, frozen=True):
    runs: list[CreatedRun]


class PatchRun(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be changed of a run that waits; what is left out stays."""

    payload: Any = UNSET
    priority: int | UnsetType = UNSET
    scheduled_for: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said, in the engine's words."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        if "scheduled_for" in said:
            said["due_at"] = heard(said.pop("scheduled_for"), "scheduled_for")
        return said


class CancelRun(Struct, frozen=True, forbid_unknown_fields=True):
    reason: str | None = None


class AttemptView(Struct, frozen=True):
    """One execution of a run."""

    n: int
    id: str
    retry_of: str | None
    outcome: str
    worker: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    error: Failure | None


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt.n,
        attempt.id,
        attempt.retry_of,
        attempt.outcome,
        attempt.worker,
        maybe_told(attempt.claimed_at),
        maybe_told(attempt.started_at),
        maybe_told(attempt.finished_at),
        attempt.error,
    )


def attempt_of(run_id: str, view: AttemptView) -> Attempt:
    return Attempt(
        run_id,
        view.n,
        view.id,
        view.retry_of,
        view.outcome,
        view.worker,
        None,
        maybe_heard(view.claimed_at, "claimed_at"),
        maybe_heard(view.started_at, "started_at"),
        maybe_heard(view.finished_at, "finished_at"),
        view.error,
    )


class Event(Struct, frozen=True, omit_defaults=True):
    """One change of state, as streams, webhooks and histories tell it."""

    run: str
    rev: int
    at: str
    move: str
    state: State
    attempt: int
    job: str = ""
    queue: str = ""
    worker: str | None = None
    detail: Any = None


def event_of(entry: Entry) -> Event:
    """An entry of the journal as it is told."""
    return Event(
        entry.run,
        entry.rev,
        told(entry.at),
        entry.move,
        entry.state,
        entry.attempt,
        entry.job,
        entry.queue,
        entry.worker,
        _opened(entry.detail),
    )


def entry_of(event: Event) -> Entry:
    return Entry(
        event.run,
        event.rev,
        heard(event.at, "at"),
        event.move,
        event.state,
        event.attempt,
        event.worker,
        _text(event.detail),
        event.job,
        event.queue,
    )


class LineView(Struct, frozen=True):
    """A log line, and the cursor behind it."""

    cursor: int
    attempt: int
    n: int
    at: str
    line: str


def line_view(line: LogLine) -> LineView:
    return LineView(line_cursor(line.attempt, line.n), line.attempt, line.n, told(line.at), line.text)


def line_of(view: LineView) -> LogLine:
    return LogLine(view.attempt, view.n, heard(view.at, "at"), view.line)


def line_cursor(attempt: int, n: int) -> int:
    """The place of a line among all lines of its run; the lines of the first attempt have their own numbers."""
    return (attempt - 1) * PER_ATTEMPT + n


def line_place(cursor: int) -> tuple[int, int]:
    """The attempt and the number of the line at a cursor."""
    return (cursor // PER_ATTEMPT + 1, cursor % PER_ATTEMPT) if cursor else (0, 0)


# Jobs, schedules


class JobView(Struct, frozen=True):
    """A definition."""

    name: str
    handler: str | None
    payload: dict[str, Any]
    options: Options
    rev: int
    created_at: str
    updated_at: str


def job_view(job: Job) -> JobView:
    return JobView(job.name, job.handler, job.payload, job.options, job.rev, told(job.created_at), told(job.updated_at))


def job_of(view: JobView) -> Job:
    created_at, updated_at = heard(view.created_at, "created_at"), heard(view.updated_at, "updated_at")
    return Job(0, view.name, view.handler, view.payload, view.options, view.rev, created_at, updated_at)


class DefineJob(Struct, frozen=True, forbid_unknown_fields=True):
    """What a job is to be."""

    handler: str | None = None
    payload: dict[str, Any] = {}
    options: Options = Options()


class ScheduleView(Struct, frozen=True):
    """A rule that makes runs."""

    key: str
    job: str
    kind: str
    expr: str
    zone: str
    payload: dict[str, Any]
    options: Options
    missed: Missed
    most: int
    max_age: int | None
    overlap: Overlap
    jitter: int
    enabled: bool
    by_code: bool
    next_at: str | None
    last_at: str | None
    last_run: str | None
    fired: int
    skipped: int
    rev: int
    created_at: str
    updated_at: str
    in_words: str


class SkippedView(Struct, frozen=True):
    first_at: str
    last_at: str
    number: int
    reason: str
    at: str


def skipped_view(skipped: Skipped) -> SkippedView:
    return SkippedView(told(skipped.first_at), told(skipped.last_at), skipped.number, skipped.reason, told(skipped.at))


# The worker's port


class ClaimRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker asks for work; with `wait`, the answer may take so many milliseconds if there is none at once."""

    worker: WorkerInfo
    count: int
    lease: int
    token: str | None = None
    wait: int = 0


class RecoverRuns(Struct, frozen=True, forbid_unknown_fields=True):
    worker: WorkerInfo
    token: str


class Hold(Struct, frozen=True, array_like=True):
    """A run as its worker holds it."""

    seq: int
    token: str


class StartRuns(Struct, frozen=True, forbid_unknown_fields=True):
    held: list[Hold]


class BeatRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases to renew; progress is JSON text by the index in `held`."""

    held: list[Hold]
    lease: int
    progress: dict[int, str] = {}


class AddLines(Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    token: str
    lines: list[tuple[int, str]]
    seq: int | None = None


class ReportView(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How one attempt ended."""

    run: str
    token: str
    kind: Literal["succeed", "fail", "snooze", "give_back"]
    seq: int | None = None
    output: str | None = None  # JSON text
    output_hash: str | None = None
    error: Failure | None = None
    retry: bool = True
    delay: int | None = None


class ReportRuns(Struct, frozen=True, forbid_unknown_fields=True):
    outcomes: list[ReportView]


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error by RFC 9457: which one, what happened, what to do next."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    request_id: str | None = None


class ReceiptView(Struct, frozen=True, omit_defaults=True):
    """The answer to one report: what the run became, or why nothing of it was stored."""

    run: str
    state: State | None = None
    repeated: bool = False
    problem: Problem | None = None


class WaitFor(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker waits for something to do on these topics, for so many milliseconds at most."""

    topics: list[str]
    timeout: int


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


def report_of(view: ReportView) -> Outcome:
    """A report in the engine's words."""
    report: Report
    match view.kind:
        case "succeed":
            report = Succeed(token=view.token, output=view.output, output_hash=view.output_hash)
        case "fail":
            if view.error is None:
                raise BadInput("A failure without its error.", hint="Send error with code and message.")
            report = Fail(token=view.token, error=view.error, retry=view.retry, delay=view.delay)
        case "snooze":
            report = Snooze(token=view.token, delay=view.delay or 0)
        case "give_back":
            report = GiveBack(token=view.token)
    return Outcome(view.run, report, view.seq)


def report_view(outcome: Outcome) -> ReportView:
    """A report as it is told."""
    run, report, seq = outcome
    token = report.token or ""
    match report:
        case Succeed():
            return ReportView(run, token, "succeed", seq, output=report.output, output_hash=report.output_hash)
        case Fail():
            return ReportView(run, token, "fail", seq, error=report.error, retry=report.retry, delay=report.delay)
        case Snooze():
            return ReportView(run, token, "snooze", seq, delay=report.delay)
        case _:
            return ReportView(run, token, "give_back", seq)


class Why(Struct, frozen=True):
    """Everything that holds a run back."""

    reasons: list[Reason]
