"""The words of the protocol: its five states, and a job with its fields. A job is one attempt of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from windlass import payload as json
from windlass.api.values import to_rfc3339
from windlass.dialects.attempts import created_at
from windlass.dialects.base import Words
from windlass.model import Attempt, Failure, LogLine, Run, State


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = (JobState.SUCCESS, JobState.FAILED, JobState.CANCELLED)

WORDS = Words(
    {
        State.WAITING: JobState.PENDING,
        State.SCHEDULED: JobState.PENDING,
        State.QUEUED: JobState.PENDING,
        State.CLAIMED: JobState.RUNNING,
        State.RUNNING: JobState.RUNNING,
        State.CANCELLING: JobState.CANCELLED,
        State.SUCCEEDED: JobState.SUCCESS,
        State.FAILED: JobState.FAILED,
        State.QUARANTINED: JobState.FAILED,
        State.CANCELLED: JobState.CANCELLED,
        State.SKIPPED: JobState.CANCELLED,
    }
)
OUTCOMES = {
    **{state.value: JobState(label) for state, label in WORDS.labels.items()},
    "failed": JobState.FAILED,
    "lapsed": JobState.FAILED,
    "returned": JobState.CANCELLED,
}
"""The states of attempts by their outcome: that of the last one is the state of its run, the others are closed."""

UNKNOWN = Failure("unknown", "The attempt ended without an error of its own.")


class JobError(Struct, frozen=True):
    """Why a job failed."""

    code: str
    message: str


class Metadata(Struct, frozen=True, rename="camel"):
    """What was requested, and by whom. A run that was not created by this protocol has neither user nor organisation."""

    request_id: str
    user_id: str
    org_id: str
    action: str
    inputs: Any


class Job(Struct, frozen=True, rename="camel", kw_only=True):
    """A job. Members that do not apply are left out."""

    id: str
    state: JobState
    created_at: str
    started_at: str | UnsetType = UNSET
    completed_at: str | UnsetType = UNSET
    output: Any = UNSET
    error: JobError | UnsetType = UNSET
    logs: list[str] = []
    metadata: Metadata


class Owner(NamedTuple):
    """The request that created a run, as its `meta` has it; empty texts for a run that was created otherwise."""

    request: str
    user: str
    org: str

    @classmethod
    def of(cls, run: Run) -> Owner:
        """The owner of a run."""
        meta = {} if run.meta is None else json.decode(run.meta)
        return cls(*(value if isinstance(value := meta.get(name), str) else "" for name in ("requestId", "userId", "orgId")))

    def meta(self) -> dict[str, Any]:
        """The owner as the `meta` of a new run."""
        return {"requestId": self.request, "userId": self.user, "orgId": self.org}


class JobView(NamedTuple):
    """An attempt of a run as a job."""

    run: Run
    attempt: Attempt
    created_at: int

    @property
    def state(self) -> JobState:
        return OUTCOMES[self.attempt.outcome]

    @property
    def started_at(self) -> int | None:
        """The time of the claim. Clocks can be set back, but the times of a job are in order."""
        return None if self.attempt.claimed_at is None else max(self.attempt.claimed_at, self.created_at)

    @property
    def ended_at(self) -> int | None:
        """The time of its end; of a cancelled job that of the request, which stays when its worker has stopped."""
        if self.state not in ENDED:
            return None
        ended_at = self.attempt.finished_at if self.asked_at is None else self.asked_at
        return max(ended_at or 0, self.started_at or 0, self.created_at)

    @property
    def asked_at(self) -> int | None:
        """The time of the request by which it was cancelled. What its worker writes later does not belong to it."""
        return self.run.cancel_asked_at if self.attempt.outcome in (State.CANCELLING, State.CANCELLED) else None

    @property
    def result(self) -> dict[str, Any]:
        """The output of a success, unless it is null; the error of a failure."""
        if self.state is JobState.FAILED:
            failure = self.attempt.error or UNKNOWN
            return {"error": JobError(failure.code, failure.message)}
        output = None if self.state is not JobState.SUCCESS or self.run.output is None else json.decode(self.run.output)
        return {} if output is None else {"output": output}

    def has(self, line: LogLine) -> bool:
        """Whether a line belongs to it."""
        return line.attempt == self.attempt.n and (self.asked_at is None or line.at <= self.asked_at)


def views_of(run: Run, attempts: Sequence[Attempt]) -> Iterator[JobView]:
    """All attempts of a run, oldest first, as jobs."""
    return (JobView(run, attempt, at) for attempt, at in created_at(run, attempts))


def job_of(view: JobView, lines: Sequence[LogLine] = ()) -> Job:
    """An attempt in the words of the protocol, with the last of its lines."""
    run, owner = view.run, Owner.of(view.run)
    payload = run.payload if view.attempt.payload is None else view.attempt.payload
    inputs = json.decode(payload)
    return Job(
        id=view.attempt.id,
        state=view.state,
        created_at=to_rfc3339(view.created_at),
        started_at=_unless_none(view.started_at),
        completed_at=_unless_none(view.ended_at),
        **view.result,
        logs=[line.text for line in lines if view.has(line)],
        metadata=Metadata(owner.request or run.id, owner.user, owner.org, run.job, {} if inputs is None else inputs),
    )


def as_created(job: Job) -> Job:
    """A job as it was at its creation, whatever a quick worker has done meanwhile."""
    return replace(job, state=JobState.PENDING, started_at=UNSET, completed_at=UNSET, output=UNSET, error=UNSET, logs=[])


def _unless_none(at: int | None) -> str | UnsetType:
    return UNSET if at is None else to_rfc3339(at)


def to_plain(job: Job) -> dict[str, Any]:
    """A job as it is sent."""
    plain: dict[str, Any] = msgspec.to_builtins(job)
    return plain
