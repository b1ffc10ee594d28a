"""The words of 0gkit's durable jobs: states, a job's record, and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from windlass import payload as json
from windlass.dialects.base import Words
from windlass.dialects.zerog.errors import HandlerThrew
from windlass.errors import WrongState
from windlass.model import Attempt, Options, Run, State

QUEUE = "zerog"
MAX_ATTEMPTS, BACKOFF = 3, 500
LEASE = 30_000


class JobState(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


WORDS = Words(
    {
        State.WAITING: JobState.QUEUED,
        State.SCHEDULED: JobState.QUEUED,
        State.QUEUED: JobState.QUEUED,
        State.CLAIMED: JobState.RUNNING,
        State.RUNNING: JobState.RUNNING,
        State.SUCCEEDED: JobState.DONE,
        State.FAILED: JobState.FAILED,
        State.QUARANTINED: JobState.FAILED,
        State.CANCELLING: JobState.CANCELLED,
        State.CANCELLED: JobState.CANCELLED,
        State.SKIPPED: JobState.CANCELLED,
    }
)
ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
_EXHAUSTED = (State.FAILED, State.QUARANTINED)
_STOPPED = (State.CANCELLING, State.CANCELLED)


class JobMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How often a job was started, and when; times are milliseconds."""

    attempts: int
    created_at: int
    started_at: int | None = None  # of the last attempt
    finished_at: int | None = None
    last_error: str | None = None


class JobRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A job. Members that do not apply are None, and left out of its JSON."""

    id: str
    name: str
    state: JobState
    input: Any
    result: Any = None
    error: str | None = None
    metadata: JobMetadata

    def to_json(self) -> dict[str, Any]:
        """The record in the protocol's spelling, as plain values."""
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members

    def result_or_raise(self) -> Any:
        """The result of a job that is done; HandlerThrew if it failed, WrongState in any other state."""
        if self.state is JobState.FAILED:
            raise HandlerThrew(f"The job {self.id} has failed: {self.error}.", hint="Correct the cause, and enqueue it again.")
        if self.state is not JobState.DONE:
            raise WrongState(f"The job {self.id} is {self.state}.", hint="A job has a result when it is done.")
        return self.result


def state_of(state: State) -> JobState:
    """The word for the state of a run."""
    return JobState(WORDS.label(state))


def options_of(queue: str, max_attempts: int) -> Options:
    """The protocol's rules for a run: after a failure it waits for a while, and then takes its former place."""
    return Options(queue=queue, max_attempts=max_attempts, backoff_base=BACKOFF, on_exhausted="failed", retry_place="keep")


def needs_attempts(run: Run) -> bool:
    """Whether the last error of a run is known only from its closed attempts."""
    return run.attempt > 1 and run.error is None


def record_of(run: Run, attempts: Sequence[Attempt] = ()) -> JobRecord:
    """A run in the words of the protocol; `needs_attempts` tells for which runs their attempts count."""
    return JobRecord(
        id=run.id,
        name=run.job,
        state=state_of(run.state),
        input=json.decode(run.payload),
        result=None if run.output is None else json.decode(run.output),
        error=None if run.state not in _EXHAUSTED or run.error is None else run.error.message,
        metadata=metadata_of(run, attempts),
    )


def metadata_of(run: Run, attempts: Sequence[Attempt] = ()) -> JobMetadata:
    """The metadata of a run. A job has started when a worker has claimed it, and ended when it was cancelled."""
    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    error = run.error or (errors[-1] if errors else None)
    return JobMetadata(
        attempts=run.attempt if run.claimed_at is not None else run.attempt - 1,
        created_at=run.created_at,
        started_at=run.claimed_at,
        finished_at=run.cancel_asked_at or run.finished_at if run.state in _STOPPED else run.finished_at,
        last_error=None if error is None else error.message,
    )
