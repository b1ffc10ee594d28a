"""What crosses the network between hub, client, worker and receivers of webhooks. Times are RFC 3339 in UTC, durations milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from windlass import cron
from windlass.engine import AuditPage, Outcome, Reason
from windlass.engine.access import OVERLAP
from windlass.engine.schedules import edited, fingerprint
from windlass.engine.stats import JobStats, Minute, Stats
from windlass.engine.webhooks import DELAYS, SECRET_OVERLAP, Deliveries
from windlass.errors import BadInput, WindlassError
from windlass.machine import ENDED, MOVES, Cancel, Fail, GiveBack, Patch, Report, Snooze, Succeed
from windlass.model import (
    Attempt,
    Counts,
    Created,
    Delivery,
    DeliveryStatus,
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
    Schedule,
    Scope,
    Skipped,
    State,
    Token,
    Webhook,
    Worker,
    WorkerInfo,
)

PER_ATTEMPT = 100_000
"""Log lines are counted through all attempts of a run in steps of this size, so that the lines of the first keep their own numbers."""


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
    scheduled_for: str  # the instant of its schedule; else when it is due
    due_at: str
    instant: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    cancel_asked_at: str | None
    actions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # what is too large for a list; ask for the run itself


_WAYS: dict[State, tuple[str, ...]] = {
    state: tuple(name for name, allowed in (("cancel", Cancel in moves), ("patch", Patch in moves), ("rerun", state in ENDED)) if allowed)
    for state, moves in MOVES.items()
}


def _opened(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _raw(text: str | None) -> Any:
    """Stored JSON as it is: to read it only to write it again would cost more than all the rest."""
    return None if text is None else msgspec.Raw(text.encode())


IN_A_LIST = 4 * 1024
"""Characters of a payload, an output or a word of progress that a list still shows."""


def listed(run: Run) -> RunView:
    """A run as a list tells it: without what is large."""
    large = tuple(name for name in ("payload", "output", "progress") if len(getattr(run, name) or "") > IN_A_LIST)
    return run_view(replace(run, **dict.fromkeys(large, "null")), large) if large else run_view(run)


def run_view(run: Run, left_out: tuple[str, ...] = ()) -> RunView:
    """A run as it is told."""
    return RunView(
        left_out=left_out,
        id=run.id,
        job=run.job,
        queue=run.queue,
        state=run.state,
        priority=run.priority,
        rev=run.rev,
        payload=_raw(run.payload),
        output=_raw(run.output),
        error=run.error,
        reason=run.reason,
        progress=_raw(run.progress),
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
        scheduled_for=told(run.scheduled_for),
        due_at=told(run.due_at),
        instant=maybe_told(run.instant),
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
        due_at=heard(view.due_at, "due_at"),
        instant=maybe_heard(view.instant, "instant"),
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


def created_view(created: Created, run: Run | None) -> CreatedRun:
    return CreatedRun(created.id, created.created, created.pruned, None if run is None else run_view(run))


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


class Attempts(Struct, frozen=True):
    attempts: list[AttemptView]


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


class History(Struct, frozen=True):
    events: list[Event]


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


class Lines(Struct, frozen=True):
    lines: list[LineView]


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


class Jobs(Struct, frozen=True):
    """Some definitions by name, and after which name the next page begins."""

    jobs: list[JobView]
    cursor: str | None


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
    edited: bool
    anchor: str
    next_at: str | None
    last_at: str | None
    last_run: str | None
    fired: int
    skipped: int
    rev: int
    created_at: str
    updated_at: str
    in_words: str


class Schedules(Struct, frozen=True):
    """Some schedules by key, and after which key the next page begins."""

    schedules: list[ScheduleView]
    cursor: str | None


_TIMES = ("anchor", "next_at", "last_at", "created_at", "updated_at")


def schedule_view(schedule: Schedule) -> ScheduleView:
    told_as = {name: getattr(schedule, name) for name in ScheduleView.__struct_fields__ if hasattr(schedule, name)}
    times = {name: maybe_told(told_as[name]) for name in _TIMES}
    words = cron.describe(cron.Rule(schedule.kind, schedule.expr, schedule.zone))
    return ScheduleView(**told_as | times | {"by_code": schedule.said is not None, "edited": edited(schedule), "in_words": words})


def schedule_of(view: ScheduleView) -> Schedule:
    """The schedule that a view tells of. What is not told is 0 or empty."""
    known = {name: getattr(view, name) for name in Schedule.__struct_fields__ if hasattr(view, name)}
    times = {name: maybe_heard(known[name], name) for name in _TIMES}
    schedule = Schedule(**known | times | {"id": 0, "said": "" if view.by_code else None})
    return replace(schedule, said=fingerprint(schedule)) if view.by_code and not view.edited else schedule


class PutSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule to be stored under a key: one of cron, every and at says when."""

    job: str
    cron: str | None = None
    every: str | int | None = None
    at: str | None = None
    zone: str = "UTC"
    payload: dict[str, Any] = {}
    options: Options = Options()
    missed: Missed = "latest"
    most: int = 100
    max_age: int | None = None
    overlap: Overlap = "allow"
    jitter: int = 0
    enabled: bool = True
    by_code: bool = False
    new: bool = False

    def words(self) -> dict[str, Any]:
        """What is said, in the engine's words."""
        return msgspec.structs.asdict(self)


class PatchSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of a schedule; what is left out stays."""

    job: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    expr: str | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    options: Options | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    most: int | UnsetType = UNSET
    max_age: int | UnsetType | None = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter: int | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


class PreviewView(Struct, frozen=True):
    """One coming instant of a schedule, on its own wall clock and in UTC."""

    at: str
    local: str
    clock_changes: bool


class Previews(Struct, frozen=True):
    in_words: str
    next: list[PreviewView]


class Skips(Struct, frozen=True):
    skips: list[SkippedView]


class SkippedView(Struct, frozen=True):
    first_at: str
    last_at: str
    number: int
    reason: str
    at: str


def skipped_view(skipped: Skipped) -> SkippedView:
    return SkippedView(told(skipped.first_at), told(skipped.last_at), skipped.number, skipped.reason, told(skipped.at))


def skipped_of(view: SkippedView) -> Skipped:
    first_at, last_at = heard(view.first_at, "first_at"), heard(view.last_at, "last_at")
    return Skipped(first_at, last_at, view.number, view.reason, heard(view.at, "at"))


# The worker's port


class Done(Struct, frozen=True):
    """It is done; there is nothing else to say."""

    done: bool = True


DONE = Done()


class RegisterWorker(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker introduces itself: what it can take, and what it says of its host and process."""

    worker: WorkerInfo
    about: dict[str, Any] | None = None


class Claimed(Struct, frozen=True):
    runs: list[Run]


class Started(Struct, frozen=True):
    started: list[Hold]


class Beaten(Struct, frozen=True):
    answers: list[Literal["ok", "stop", "lost"]]


class Receipts(Struct, frozen=True):
    receipts: list[ReceiptView]


class Heard(Struct, frozen=True):
    topics: list[str]


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


# Access


class TokenView(Struct, frozen=True):
    """Who may do what; nothing of the secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    worker: str | None
    kind: Literal["token", "session", "invitation"]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    used_at: str | None


def token_view(token: Token) -> TokenView:
    return TokenView(
        token.id,
        token.name,
        token.scopes,
        token.worker,
        token.kind,
        told(token.created_at),
        maybe_told(token.expires_at),
        maybe_told(token.revoked_at),
        maybe_told(token.used_at),
    )


class Tokens(Struct, frozen=True):
    """Some tokens, oldest first, and after which id the next page begins."""

    tokens: list[TokenView]
    cursor: str | None


class CreateToken(Struct, frozen=True, forbid_unknown_fields=True):
    """A token that is asked for; with `worker`, it is good for that worker only."""

    name: str
    scopes: tuple[Scope, ...]
    worker: str | None = None
    expires_in: int | None = None  # milliseconds; None: never


class RotateToken(Struct, frozen=True, forbid_unknown_fields=True):
    """For how many milliseconds the old one stays good."""

    overlap: int = OVERLAP


class MadeToken(Struct, frozen=True):
    """A token and its secret, which is told here and never again."""

    token: TokenView
    secret: str


class Me(Struct, frozen=True):
    """Who asks, as the hub knows them."""

    who: str
    scopes: list[Scope]
    token: str | None
    worker: str | None


class TicketView(Struct, frozen=True):
    """What a browser puts behind the address of a stream, `?ticket=...`, since it cannot send a header there."""

    ticket: str
    expires_at: str


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The ticket of a link by which somebody signs in, once."""

    ticket: str


class AuditView(Struct, frozen=True):
    """What somebody did."""

    at: str
    who: str
    what: str
    subject: str


class Audit(Struct, frozen=True):
    """What people did, newest first, and the cursor of the next page."""

    entries: list[AuditView]
    cursor: str | None


def audit_view(page: AuditPage) -> Audit:
    return Audit([AuditView(told(entry.at), entry.who, entry.what, entry.subject) for entry in page.entries], page.cursor)


# Webhooks


class WebhookView(Struct, frozen=True):
    """An endpoint that is told of changes; never a secret."""

    id: str
    name: str
    url: str
    jobs: list[str] | None
    queues: list[str] | None
    states: list[State]
    delays: list[int]
    enabled: bool
    reason: str | None
    failures: int
    paused_until: str | None
    secrets: int
    created_at: str
    updated_at: str


def webhook_view(webhook: Webhook, now: int) -> WebhookView:
    """An endpoint as it is told; `secrets` is how many sign just now."""
    return WebhookView(
        id=webhook.id,
        name=webhook.name,
        url=webhook.url,
        jobs=None if webhook.jobs is None else list(webhook.jobs),
        queues=None if webhook.queues is None else list(webhook.queues),
        states=list(webhook.states),
        delays=list(webhook.delays),
        enabled=webhook.enabled,
        reason=webhook.reason,
        failures=webhook.failures,
        paused_until=told(webhook.paused_until) if webhook.paused_until > now else None,
        secrets=sum(secret.until is None or secret.until > now for secret in webhook.secrets),
        created_at=told(webhook.created_at),
        updated_at=told(webhook.updated_at),
    )


class Webhooks(Struct, frozen=True):
    webhooks: list[WebhookView]


class AddWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint to be told of changes: of these jobs and queues, or of all; when a run enters one of these states."""

    url: str
    name: str | None = None
    jobs: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    states: tuple[State, ...] = ENDED
    delays: tuple[int, ...] = DELAYS
    secret: str | None = None
    enabled: bool = True


class MadeWebhook(Struct, frozen=True):
    """An endpoint and its new secret, which is told once."""

    webhook: WebhookView
    secret: str


class PatchWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of an endpoint; what is left out stays."""

    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    jobs: tuple[str, ...] | UnsetType | None = UNSET
    queues: tuple[str, ...] | UnsetType | None = UNSET
    states: tuple[State, ...] | UnsetType = UNSET
    delays: tuple[int, ...] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


class RotateWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """A new secret; those before it sign too for so many milliseconds."""

    overlap: int = SECRET_OVERLAP
    secret: str | None = None


class DeliveryView(Struct, frozen=True):
    """One change, told to one endpoint. Its id is the webhook-id of every try."""

    id: str
    webhook: str
    run: str
    rev: int
    type: str
    status: DeliveryStatus
    tries: int
    next_at: str | None
    answer: int | None
    error: str | None
    created_at: str
    finished_at: str | None


def delivery_view(delivery: Delivery) -> DeliveryView:
    return DeliveryView(
        id=delivery.id,
        webhook=delivery.webhook,
        run=delivery.run,
        rev=delivery.rev,
        type=delivery.type,
        status=delivery.status,
        tries=delivery.tries,
        next_at=maybe_told(delivery.next_at),
        answer=delivery.answer,
        error=delivery.error,
        created_at=told(delivery.created_at),
        finished_at=maybe_told(delivery.finished_at),
    )


class DeliveryPage(Struct, frozen=True):
    """What was told to an endpoint, latest first, and the cursor of the next page."""

    deliveries: list[DeliveryView]
    cursor: str | None


def delivery_page(page: Deliveries) -> DeliveryPage:
    return DeliveryPage([delivery_view(delivery) for delivery in page.deliveries], page.cursor)


# Workers and counts


class WorkerView(Struct, frozen=True):
    """A worker as it was last seen, and how much it holds now."""

    name: str
    queues: tuple[str, ...] | None
    jobs: tuple[str, ...] | None
    tags: tuple[str, ...]
    cores: int
    memory: int
    slots: int
    about: dict[str, Any]
    metrics: dict[str, int | float]
    metrics_at: str | None
    registered_at: str
    seen_at: str
    alive: bool
    held: int
    runs: tuple[str, ...]


class Workers(Struct, frozen=True):
    """Some workers by name, and after which name the next page begins."""

    workers: list[WorkerView]
    cursor: str | None


def worker_view(worker: Worker) -> WorkerView:
    return WorkerView(
        **msgspec.structs.asdict(worker.info),
        about=worker.about,
        metrics=worker.metrics,
        metrics_at=maybe_told(worker.metrics_at),
        registered_at=told(worker.registered_at),
        seen_at=told(worker.seen_at),
        alive=worker.alive,
        held=worker.held,
        runs=worker.runs,
    )


def worker_of(view: WorkerView) -> Worker:
    info = WorkerInfo(**{name: getattr(view, name) for name in WorkerInfo.__struct_fields__})
    times = maybe_heard(view.metrics_at, "metrics_at"), heard(view.registered_at, "registered_at"), heard(view.seen_at, "seen_at")
    return Worker(info, view.about, view.metrics, *times, view.alive, view.held, view.runs)


class TellMetrics(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker measures of its host: numbers by name."""

    worker: str
    metrics: dict[str, int | float]


class MinuteView(Struct, frozen=True):
    """How much there was in the minute that begins then."""

    at: str
    counts: Counts


class StatsView(Struct, frozen=True):
    """How many runs there are in each state, or have ever ended in it; how much there was, in all, by minute, and by job and queue."""

    at: str
    states: dict[State, int]
    counts: Counts
    minutes: list[MinuteView]
    jobs: list[JobStats]


def stats_view(stats: Stats) -> StatsView:
    minutes = [MinuteView(told(minute.at), minute.counts) for minute in stats.minutes]
    return StatsView(told(stats.at), stats.states, stats.counts, minutes, stats.jobs)


def stats_of(view: StatsView) -> Stats:
    minutes = [Minute(heard(minute.at, "at"), minute.counts) for minute in view.minutes]
    return Stats(heard(view.at, "at"), view.states, view.counts, minutes, view.jobs)


class Health(Struct, frozen=True):
    """Whether a hub is ready, and which of its parts are not."""

    ready: bool
    missing: tuple[str, ...] = ()
