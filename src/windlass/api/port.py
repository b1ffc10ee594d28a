"""The worker's port: how a worker claims runs, renews their leases and reports."""

from __future__ import annotations

from typing import Any, Literal, Self

from msgspec import Struct, field
from msgspec.structs import astuple

from windlass.answers import Outcome
from windlass.api.problems import Problem
from windlass.api.requests import Body
from windlass.errors import BadInput
from windlass.machine import Fail, Refuse, Report, Requeue, Skip, Snooze, Succeed
from windlass.model import SOLVER, BeatAnswer, Failure, Life, Run, State, Step, WorkerInfo


class WorkerDescription(WorkerInfo, frozen=True):
    """A worker as it describes itself. One that does not send `programs` is of a version in which the tag alone decided."""

    programs: bool | None = None  # type: ignore[assignment]

    @classmethod
    def of(cls, worker: WorkerInfo) -> Self:
        """The description of a worker."""
        return cls(*astuple(worker))

    def info(self) -> WorkerInfo:
        """The worker as the engine takes it."""
        programs = SOLVER in self.tags if self.programs is None else self.programs
        return WorkerInfo(self.name, self.queues, self.jobs, self.tags, self.cores, self.memory, self.slots, programs)


class RegisterWorker(Body, frozen=True):
    """A worker registers: what it can take, and facts about its host and process."""

    worker: WorkerDescription
    about: dict[str, Any] | None = None
    schemas: dict[str, str] | None = None  # by job: a fingerprint of what its code accepts


class BeginLife(Body, frozen=True):
    """A process of a worker registers: the prefix of its tokens, and how its host can tell whether it is gone."""

    worker: str
    life: Life


class LivesView(Struct, frozen=True):
    lives: list[Life]


class EndLives(Body, frozen=True):
    """Processes of a worker that have ended."""

    worker: str
    tags: list[str]


class Lapsed(Struct, frozen=True):
    runs: int


class LeaveWorker(Body, frozen=True):
    """A process of a worker has ended and holds nothing; its incarnation distinguishes it from others of its name."""

    worker: str
    incarnation: int


class Claimed(Struct, frozen=True):
    runs: list[Run]


class Started(Struct, frozen=True):
    started: list[Hold]


class RenewedLeases(Struct, frozen=True):
    answers: list[BeatAnswer]


class Receipts(Struct, frozen=True):
    receipts: list[ReceiptView]


class StoredStep(Struct, frozen=True):
    """A step as it is stored: the first result of its key."""

    step: Step


class WokenTopics(Struct, frozen=True):
    topics: list[str]


class TellMetrics(Body, frozen=True):
    """Measurements of a worker and its host: numbers by name."""

    worker: str
    metrics: dict[str, int | float]


class ClaimRuns(Body, frozen=True):
    """A worker claims runs; with `wait`, the answer may take this many milliseconds if there are none at once."""

    worker: WorkerDescription
    count: int
    lease: int
    token: str | None = None
    wait: int = 0


class RecoverRuns(Body, frozen=True):
    worker: WorkerInfo
    token: str


class Hold(Struct, frozen=True, array_like=True):
    """A run as its worker holds it."""

    seq: int
    token: str


class StartRuns(Body, frozen=True):
    held: list[Hold]


class BeatRuns(Body, frozen=True):
    """Leases to renew; progress is JSON text by the index in `held`."""

    held: list[Hold]
    lease: int
    progress: dict[int, str] = field(default_factory=dict)


class AddLines(Body, frozen=True):
    run: str
    token: str
    lines: list[tuple[int, str]]
    seq: int | None = None


class StoreStep(Body, frozen=True):
    """The result of a step, as JSON text."""

    run: str
    token: str
    key: str
    output: str
    seq: int | None = None


class ReportView(Body, frozen=True, omit_defaults=True):
    """The outcome of one attempt."""

    run: str
    token: str
    kind: Literal["succeed", "fail", "snooze", "requeue", "refuse", "skip"]
    seq: int | None = None
    output: str | None = None  # JSON text
    output_hash: str | None = None
    error: Failure | None = None
    retry: bool = True
    delay: int | None = None
    begun: bool = True  # false: it is requeued without having started
    schema: str | None = None  # a fingerprint of what the worker's code accepts, if it refuses the payload
    key: str | None = None  # the worker's own name for the result of a success
    reason: str | None = None  # of a skip


class ReportRuns(Body, frozen=True):
    outcomes: list[ReportView]


class ReceiptView(Struct, frozen=True, omit_defaults=True):
    """The answer to one report: the new state of the run, or why nothing was stored."""

    run: str
    state: State | None = None
    repeated: bool = False
    problem: Problem | None = None


class WaitFor(Body, frozen=True):
    """A worker waits for hints on these topics, for at most this many milliseconds."""

    topics: list[str]
    timeout: int


def report_of(view: ReportView) -> Outcome:
    """The report as the engine takes it."""
    report: Report
    match view.kind:
        case "succeed":
            report = Succeed(token=view.token, output=view.output, output_hash=view.output_hash, key=view.key)
        case "fail":
            if view.error is None:
                raise BadInput("A failure without its error.", hint="Send error with code and message.")
            report = Fail(token=view.token, error=view.error, retry=view.retry, delay=view.delay)
        case "snooze":
            report = Snooze(token=view.token, delay=view.delay or 0)
        case "skip":
            if view.reason is None:
                raise BadInput("A skip without its reason.", hint="Send reason.")
            report = Skip(token=view.token, reason=view.reason)
        case "requeue":
            report = Requeue(token=view.token, begun=view.begun)
        case "refuse":
            if view.error is None or view.schema is None:
                raise BadInput("A refusal without its error or its schema.", hint="Send error with code and message, and the schema.")
            report = Refuse(token=view.token, error=view.error, schema=view.schema)
    return Outcome(view.run, report, view.seq)


def report_view(outcome: Outcome) -> ReportView:
    """The report as it is sent."""
    run, report, seq = outcome
    token = report.token or ""
    match report:
        case Succeed():
            return ReportView(run, token, "succeed", seq, output=report.output, output_hash=report.output_hash, key=report.key)
        case Fail():
            return ReportView(run, token, "fail", seq, error=report.error, retry=report.retry, delay=report.delay)
        case Snooze():
            return ReportView(run, token, "snooze", seq, delay=report.delay)
        case Skip():
            return ReportView(run, token, "skip", seq, reason=report.reason)
        case Requeue():
            return ReportView(run, token, "requeue", seq, begun=report.begun)
        case Refuse():
            return ReportView(run, token, "refuse", seq, error=report.error, schema=report.schema)
        case _:
            raise TypeError(f"{type(report)} is not a report.")
